"""What overlap cannot be combined with, refused before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.layers.attention.dsv4_sm120 import overlap_settings
from sglang.srt.layers.attention.dsv4_sm120.overlap_settings import VARIABLE
from sglang_pd.environ import envs, set_default, upstream
from sglang_pd.preflight import refuse

logger = logging.getLogger(__name__)
ROWS = "SGLANG_PD_OVERLAP_MAX_ROWS"


@dataclass(frozen=True)
class Asked:
    """What a server was asked for, as far as it matters here. ``word``: :data:`VARIABLE` as it stands."""

    deepseek_v4: bool
    word: str | None
    fp8_gemm: str
    pdmux: bool
    graphs: bool


def problems(asked: Asked) -> list[str]:
    """Every reason not to start; empty where the server may overlap, or need not."""
    wrong = overlap_settings.problem(asked.word)
    if wrong:
        return [wrong]
    if not asked.deepseek_v4 or not overlap_settings.is_on():
        return []
    found = []
    if asked.fp8_gemm == "flashinfer_cutlass":
        found.append(
            f"{VARIABLE}=1 and --fp8-gemm-backend flashinfer_cutlass: projections on different streams would work in "
            "one workspace of FlashInfer's (gemm_base.py: one buffer per process)"
        )
    if asked.pdmux:
        found.append(
            f"{VARIABLE}=1 and --enable-pdmux: batches on two streams would share the side streams, and upstream's "
            "page buffer (flash_mla_sm120.py: one per device)"
        )
    return found


def without_effect(asked: Asked) -> str | None:
    """Why a variable changes nothing here, if so."""
    if not asked.deepseek_v4:
        return f"{VARIABLE} has no effect on attention: the model is not DeepSeek-V4"
    if overlap_settings.is_on() and not asked.graphs:
        return f"{VARIABLE}=1 has no effect: streams overlap in CUDA graphs only, and --disable-cuda-graph is given"
    if not overlap_settings.is_on() and envs.SGLANG_PD_OVERLAP_MAX_ROWS.is_set():
        return f"{ROWS} has no effect: overlap is off ({overlap_settings.chosen_by()})"
    return None


def check_arguments(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Resolution step ``handle_other_validations``, then ours: exit with code 2 where there is a problem. The processes
    that this one starts see the choice in their environment."""
    previous(server_args)
    asked = _asked(server_args)
    if asked is None:
        return
    refuse(*problems(asked))
    why = without_effect(asked)
    if why:
        logger.warning("%s", why)
    if asked.deepseek_v4:
        set_default(VARIABLE, str(int(overlap_settings.DEFAULT)))


def _asked(server_args: Any) -> Asked | None:
    """None where no model is named that could be looked at."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.model_config import is_deepseek_v4

    args = resolving_view(server_args)
    if args.model_path in ("none", "dummy"):
        return None
    return Asked(
        deepseek_v4=is_deepseek_v4(model_config_of(server_args).hf_config),
        word=upstream(VARIABLE),
        fp8_gemm=args.fp8_gemm_runner_backend,
        pdmux=bool(args.enable_pdmux),
        graphs=not args.disable_cuda_graph,
    )
