import numpy as np
import pytest

from sglang_pd.demo import gguf_llama


def interleave(rows, heads):
    """What llama.cpp's converter does, row by row: of each head, row i goes to 2i and row half + i to 2i + 1."""
    head_dim = len(rows) // heads
    half = head_dim // 2
    result = np.empty_like(rows)
    for head in range(heads):
        first = head * head_dim
        for i in range(half):
            result[first + 2 * i] = rows[first + i]
            result[first + 2 * i + 1] = rows[first + half + i]
    return result


@pytest.mark.parametrize(("heads", "head_dim", "hidden"), [(1, 2, 3), (3, 8, 5), (9, 64, 4)])
def test_unpermute_undoes_the_interleaving(heads, head_dim, hidden):
    rows = np.arange(heads * head_dim * hidden, dtype=np.float32).reshape(heads * head_dim, hidden)
    stored = interleave(rows, heads)
    assert head_dim == 2 or not np.array_equal(stored, rows)
    assert np.array_equal(gguf_llama.unpermute(stored, heads), rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_names(name, expected):
    assert gguf_llama.hf_name(name) == expected


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight"])
def test_a_tensor_that_would_be_lost_is_an_error(name):
    with pytest.raises(ValueError, match=name):
        gguf_llama.hf_name(name)


META = {
    "general.architecture": "llama",
    "llama.vocab_size": 100,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 128,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
}


def test_sizes_come_from_the_metadata():
    sizes = gguf_llama.shape(META, {"token_embd.weight"}, "bfloat16")
    assert (sizes.vocab, sizes.hidden, sizes.intermediate, sizes.layers) == (100, 32, 64, 2)
    assert (sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.context) == (4, 2, 8, 128)
    assert (sizes.rope_theta, sizes.rms_norm_eps) == (100000.0, 1e-5)
    assert sizes.tied_embeddings


def test_a_separate_head_is_not_tied():
    assert not gguf_llama.shape(META, {"token_embd.weight", "output.weight"}, "bfloat16").tied_embeddings


def test_another_architecture_is_an_error():
    with pytest.raises(ValueError, match="qwen2"):
        gguf_llama.shape(META | {"general.architecture": "qwen2"}, set(), "bfloat16")


def test_another_kind_of_tokenizer_is_an_error():
    with pytest.raises(ValueError, match="qwen2"):
        gguf_llama.tokenizer({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"})
