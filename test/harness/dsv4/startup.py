"""A server's arguments, resolved as at start-up."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any


def model_folder(folder: Path, model_type: str = "deepseek_v4", architecture: str = "DeepseekV4ForCausalLM") -> str:
    """A folder with the configuration of a small DeepSeek-V4, or of another model, and no weights."""
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "sliding_window": 128,
        "max_position_embeddings": 4096,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 512,
        "qk_nope_head_dim": 448,
        "qk_rope_head_dim": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1024,
        "v_head_dim": 512,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "intermediate_size": 64,
        "vocab_size": 256,
        "compress_ratios": [0, 4, 128],
        "quantization_config": None,
        "rope_scaling": {},
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def resolve(model_path: str, arguments: dict[str, Any] | None = None) -> tuple[int, str]:
    """Upstream's whole resolution of a server's arguments: (exit code, what was printed), 0 where it is accepted."""
    from sglang.srt.server_args import ServerArgs

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            ServerArgs(model_path=model_path, **(arguments or {})).resolve_once()
    except SystemExit as refused:
        return int(str(refused.code)), said.getvalue()
    return 0, said.getvalue()
