"""A random Llama that loads in no time and whose output tells whether a server computed right.

What it is for: comparing two servers token by token. Its output is printable ASCII, so text and tokens correspond; it
never ends by itself; and attention is sharp and strong, so that a prompt's every part matters: with one 16-token page
of the KV cache zeroed, greedy output changed within 10 tokens for every page of a prompt of 400 tokens, and within 48
for each of 18 pages tried of one of 2000.

It must be served in float32 (``--dtype float32``): upstream's default for a float32 checkpoint is float16, whose
rounding can exceed the gap of the best two logits.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_pd.demo import store
from sglang_pd.demo.manifest import Identity
from sglang_pd.demo.progress import Progress, silent

if TYPE_CHECKING:
    import tokenizers
    import torch

    from sglang_pd.demo.checkpoint import LlamaShape

VERSION = 1

BYTES = 256
BOS, EOS, ROLE = "<|bos|>", "<|eos|>", "<|role|>"
VOCAB = 320  # the bytes and the special tokens, up to the next multiple of 64, to which upstream pads
PRINTABLE = range(32, 127)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    f"{{{{ '{ROLE}' + message['role'] + '\\n' + message['content'] + eos_token }}}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{ROLE}assistant\\n' }}}}{{% endif %}}"
)

# Found by trying: softer attention averages over the prompt and falls into loops, sharper attention reads few tokens
# and amplifies rounding. The gain is that of q and of k, the weight that of attention's output beside the residual.
ATTENTION_GAIN = 2.0
ATTENTION_WEIGHT = 2.0
# Standard deviation of the logits: the best is then about 3 above the second, where a plain initialisation has 0.01.
HEAD_SCALE = 8.0


def build_tiny(out: Path | None = None, seed: int = 0, progress: Progress = silent) -> Path:
    """The directory with the random model (about 4 MB); the same ``seed`` gives the same weights.

    Raises :class:`sglang_pd.errors.UserError` where ``out`` holds something else.
    """
    name = f"tiny-llama-{seed}"
    identity = Identity(name, hashlib.sha256(name.encode()).hexdigest(), VERSION)

    def write(model: Path, scratch: Path) -> None:
        _write(model, seed, progress)

    return store.ensure(out or store.default_directory(name), identity, write, progress)


def _write(model: Path, seed: int, progress: Progress) -> None:
    progress("build", 0, 0)
    from sglang_pd.demo import checkpoint

    sizes = shape()
    tokens = checkpoint.ChatTokens(bos=BOS, eos=EOS, pad=EOS)
    special_ids = checkpoint.write_tokenizer(model, byte_tokenizer(), tokens, CHAT_TEMPLATE, sizes.context)
    checkpoint.write_config(model, sizes, special_ids)
    checkpoint.write_weights(model, random_weights(sizes, seed))
    progress("build", 1, 1)


def shape() -> LlamaShape:
    from sglang_pd.demo.checkpoint import LlamaShape

    return LlamaShape(
        vocab=VOCAB,
        hidden=128,
        intermediate=256,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=64,  # GPU attention kernels have no smaller one
        context=32768,
        rope_theta=10000.0,
        rms_norm_eps=1e-05,
        tied_embeddings=False,
        dtype="float32",
    )


def byte_tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer in which the id of every byte is the byte itself, so that any text comes back as it was."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    result = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([BOS, EOS, ROLE])
    return result


def byte_characters() -> list[str]:
    """The character by which the byte-level tokenizer's files stand for each byte.

    Printable Latin-1 stands for itself; the others follow in order from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def random_weights(sizes: LlamaShape, seed: int) -> dict[str, torch.Tensor]:
    """Normal weights, float32, under Hugging Face's names."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))

    hidden, inner = sizes.hidden, sizes.intermediate
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    weights = {"model.embed_tokens.weight": torch.randn(sizes.vocab, hidden, generator=generator)}
    for layer in range(sizes.layers):
        parts = {
            "self_attn.q_proj": matrix(q_rows, hidden, ATTENTION_GAIN),
            "self_attn.k_proj": matrix(kv_rows, hidden, ATTENTION_GAIN),
            "self_attn.v_proj": matrix(kv_rows, hidden),
            "self_attn.o_proj": matrix(hidden, q_rows, ATTENTION_WEIGHT),
            "mlp.gate_proj": matrix(inner, hidden, 2.0),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
            "input_layernorm": torch.ones(hidden),
            "post_attention_layernorm": torch.ones(hidden),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    head = matrix(sizes.vocab, hidden, HEAD_SCALE)
    # A logit of 0 is never the best among these, so only printable bytes are ever chosen.
    head[[token for token in range(sizes.vocab) if token not in PRINTABLE]] = 0
    return weights | {"model.norm.weight": torch.ones(hidden), "lm_head.weight": head}
