"""Read a Llama out of a GGUF file: its sizes, its weights under Hugging Face's names, and its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sglang_pd.demo.checkpoint import ChatTokens, LlamaShape

if TYPE_CHECKING:
    import gguf

CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of special tokens

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def metadata(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def shape(meta: dict[str, Any], tensor_names: set[str], dtype: str) -> LlamaShape:
    """Raises ``ValueError`` where the file is no Llama and ``KeyError`` where it lacks a size."""
    if meta["general.architecture"] != "llama":
        raise ValueError(f"not a Llama but {meta['general.architecture']!r}")
    heads = meta["llama.attention.head_count"]
    return LlamaShape(
        vocab=meta["llama.vocab_size"],
        hidden=meta["llama.embedding_length"],
        intermediate=meta["llama.feed_forward_length"],
        layers=meta["llama.block_count"],
        heads=heads,
        kv_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta["llama.embedding_length"] // heads,
        context=meta["llama.context_length"],
        rope_theta=_shortest(meta["llama.rope.freq_base"]),
        rms_norm_eps=_shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
        tied_embeddings="output.weight" not in tensor_names,
        dtype=dtype,
    )


def _shortest(value: float) -> float:
    """The decimal that a 32-bit float was written from (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; raises ``ValueError`` for one that a Llama does not have."""
    if (match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)) and match[2] in LAYER:
        return f"model.layers.{match[1]}.{LAYER[match[2]]}.weight"
    if (match := re.fullmatch(r"(\w+)\.weight", name)) and match[1] in TOP:
        return f"{TOP[match[1]]}.weight"
    raise ValueError(f"unknown tensor {name!r}")


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a q or k projection ``[heads * head_dim, hidden]`` back into Hugging Face's order.

    llama.cpp rotates neighbours (2i, 2i + 1) where Hugging Face rotates (i, i + head_dim / 2), so its converter
    interleaves the halves of every head.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def weights(reader: gguf.GGUFReader, sizes: LlamaShape) -> Iterator[tuple[str, np.ndarray]]:
    """Hugging Face's name and the float32 values of every tensor."""
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if name.endswith("q_proj.weight"):
            values = unpermute(values, sizes.heads)
        elif name.endswith("k_proj.weight"):
            values = unpermute(values, sizes.kv_heads)
        yield name, values


def tokenizer(meta: dict[str, Any]) -> tuple[tokenizers.Tokenizer, ChatTokens, str]:
    """The tokenizer, its special tokens, and the chat template.

    Built here and not by transformers' GGUF reader, which leaves out that this family splits digits off before
    anything else: "a  1" would become other tokens than those the model was trained with.
    """
    kind = meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"unknown kind of tokenizer {kind}")
    texts: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    result = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    result.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    result.add_special_tokens([text for text, kind in zip(texts, types, strict=True) if kind == CONTROL_TOKEN])
    tokens = ChatTokens(
        bos=texts[meta["tokenizer.ggml.bos_token_id"]],
        eos=texts[meta["tokenizer.ggml.eos_token_id"]],
        pad=texts[meta["tokenizer.ggml.padding_token_id"]],
        unknown=texts[meta["tokenizer.ggml.unknown_token_id"]],
    )
    return result, tokens, meta["tokenizer.chat_template"]
