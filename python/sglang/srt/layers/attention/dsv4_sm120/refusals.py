"""What bf16 index keys cannot be combined with, refused before anything is loaded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sgl_kernel_sm120.index_k.launch import LaunchError
from sglang.srt.layers.attention.dsv4_sm120 import settings
from sglang.srt.layers.attention.dsv4_sm120.hicache import storage_problem
from sglang_pd.preflight import refuse

logger = logging.getLogger(__name__)
VARIABLE = "SGLANG_DSV4_BF16_INDEX_K=1"


@dataclass(frozen=True)
class Asked:
    """What a server was asked for, as far as it matters here. ``capability``: the GPU's major number, 0 without."""

    model_type: str
    deepseek_v4: bool
    cuda: bool
    fp4_indexer: bool
    hisparse: bool
    storage: str | None
    capability: int = 0


def problems(asked: Asked) -> list[str]:
    """Every reason not to start, each naming what is in the way; empty where bf16 index keys can be served."""
    found = []
    if asked.model_type == "deepseek_v41":
        found.append(f"{VARIABLE}: DeepSeek-V4.1 keeps index keys of its low ratios in FP4 only")
    if not asked.cuda:
        found.append(f"{VARIABLE} needs an NVIDIA GPU: its kernels are for CUDA")
    if asked.fp4_indexer:
        found.append(f"{VARIABLE} and --enable-deepseek-v4-fp4-indexer ask for different index keys")
    if asked.hisparse:
        found.append(f"{VARIABLE}: --enable-hisparse moves single tokens in the layout of FP8 index keys")
    storage = storage_problem(asked.storage)
    if storage:
        found.append(f"{VARIABLE}: {storage}")
    try:
        settings.launch_for(asked.capability)
    except LaunchError as error:
        found.append(f"SGLANG_DSV4_BF16_INDEX_K_*: {error}")
    return found


def check_arguments(server_args: Any, previous: Any) -> None:
    """Resolution step ``handle_other_validations``, then ours: exit with code 2 where there is a problem."""
    previous(server_args)
    asked = _asked(server_args)
    if asked is None:
        return
    if not asked.deepseek_v4 and asked.model_type != "deepseek_v41":
        logger.warning("%s has no effect: %s is not DeepSeek-V4", VARIABLE, server_args.model_path)
        return
    refuse(*problems(asked))


def _asked(server_args: Any) -> Asked | None:
    """None where no model is named that could be looked at."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.model_config import is_deepseek_v4
    from sglang.srt.runtime_context import get_platform

    args = resolving_view(server_args)
    if args.model_path in ("none", "dummy"):
        return None
    hf_config = model_config_of(server_args).hf_config
    platform = get_platform()
    return Asked(
        model_type=getattr(hf_config, "model_type", ""),
        deepseek_v4=is_deepseek_v4(hf_config),
        cuda=platform.is_cuda,
        fp4_indexer=bool(args.enable_deepseek_v4_fp4_indexer),
        hisparse=bool(args.enable_hisparse),
        storage=args.hicache_storage_backend if args.enable_hierarchical_cache else None,
        capability=platform.device_sm // 10 if platform.is_cuda else 0,
    )
