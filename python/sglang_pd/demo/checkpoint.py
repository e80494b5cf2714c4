"""Write the small files of a Hugging Face checkpoint. Readers old and new are served: what transformers 5 renamed
stands in the form that both it and 4 understand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers
    import torch


@dataclass(frozen=True)
class LlamaShape:
    """A Llama's sizes; ``dtype`` is the name of a torch dtype."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    rope_theta: float
    rms_norm_eps: float
    tied_embeddings: bool
    dtype: str


@dataclass(frozen=True)
class ChatTokens:
    """The special tokens by their text; ``eos`` ends a turn."""

    bos: str
    eos: str
    pad: str
    unknown: str | None = None


def write_config(directory: Path, shape: LlamaShape, special_ids: dict[str, int]) -> None:
    """``special_ids`` are the config's ``bos_token_id``, ``eos_token_id`` and ``pad_token_id``."""
    _write_json(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": shape.context,
            "rope_theta": shape.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": shape.rms_norm_eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": shape.tied_embeddings,
            "torch_dtype": shape.dtype,
            **special_ids,
        },
    )
    _write_json(directory / "generation_config.json", special_ids)


def write_tokenizer(
    directory: Path, tokenizer: tokenizers.Tokenizer, tokens: ChatTokens, chat_template: str, context: int
) -> dict[str, int]:
    """Write the tokenizer's files; returns the ids that :func:`write_config` asks for."""
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens.bos,
            "eos_token": tokens.eos,
            "pad_token": tokens.pad,
            "unk_token": tokens.unknown,
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
            "chat_template": chat_template,
        },
    )
    named = {"bos_token_id": tokens.bos, "eos_token_id": tokens.eos, "pad_token_id": tokens.pad}
    vocab = tokenizer.get_vocab()
    return {key: vocab[text] for key, text in named.items()}


def write_weights(directory: Path, weights: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    path = directory / "model.safetensors"
    path.touch()
    mode = path.stat().st_mode
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors replaces the file by one that only its owner can read


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
