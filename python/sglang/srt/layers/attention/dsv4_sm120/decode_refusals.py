"""What the sparse decode kernel cannot be combined with, refused before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgl_kernel_sm120.sparse_mla.calibration import CalibrationError, read
from sgl_kernel_sm120.sparse_mla.launch import LaunchError
from sglang.srt.layers.attention.dsv4_sm120 import backend, decode_settings
from sglang_pd.environ import envs
from sglang_pd.preflight import refuse

logger = logging.getLogger(__name__)
TARGET = "SGLANG_SM120_MMA_TARGET_CTAS"
SCRATCH_LIMIT = 512 << 20


@dataclass(frozen=True)
class Asked:
    """``word``: ``SGLANG_SM120_FLASHMLA_BACKEND`` as it stands, None where it is not set."""

    model_type: str
    deepseek_v4: bool
    sm120: bool
    word: str | None


def problems(asked: Asked) -> list[str]:
    """Every reason not to start; empty where the kernel can serve."""
    found = []
    wrong = backend.problem(asked.word)
    if wrong:
        found.append(wrong)
    if asked.model_type == "deepseek_v41":
        found.append(f"{backend.VARIABLE} or {TARGET}: DeepSeek-V4.1 keeps its KV in another layout")
    scratch = decode_settings.scratch_bytes()
    if scratch > SCRATCH_LIMIT:
        found.append(
            f"{TARGET}={envs.SGLANG_SM120_MMA_TARGET_CTAS.get()} takes {scratch} bytes of memory for partial results; "
            f"at most {SCRATCH_LIMIT} are allowed"
        )
    try:
        launch = decode_settings.launch()
        path = envs.SGLANG_SM120_MMA_TABLE.get()
        if path is not None and (table := read(path)).launch != launch:
            found.append(f"SGLANG_SM120_MMA_TABLE: {path} is of {table.launch}, served is {launch}")
    except LaunchError as error:
        found.append(f"SGLANG_SM120_MMA_*: {error}")
    except CalibrationError as error:
        found.append(f"SGLANG_SM120_MMA_TABLE: {error}")
    return found


def without_effect(asked: Asked) -> str | None:
    """Why the variables change nothing here, if so."""
    if not asked.deepseek_v4 and asked.model_type != "deepseek_v41":
        return "the model is not DeepSeek-V4"
    if not asked.sm120:
        return "the GPU is not an SM120"
    if asked.word not in (None, backend.OURS):
        return f"{backend.VARIABLE}={asked.word}"
    return None


def check_arguments(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Resolution step ``handle_other_validations``, then ours: exit with code 2 where there is a problem."""
    previous(server_args)
    asked = _asked(server_args)
    if asked is None:
        return
    refuse(*problems(asked))
    why = without_effect(asked)
    if why:
        logger.warning("SGLANG_SM120_MMA_* has no effect: %s", why)


def _asked(server_args: Any) -> Asked | None:
    """None where no model is named that could be looked at."""
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.model_config import is_deepseek_v4
    from sglang.srt.runtime_context import get_platform

    if resolving_view(server_args).model_path in ("none", "dummy"):
        return None
    hf_config = model_config_of(server_args).hf_config
    return Asked(
        model_type=getattr(hf_config, "model_type", ""),
        deepseek_v4=is_deepseek_v4(hf_config),
        sm120=bool(get_platform().is_sm120),
        word=decode_settings.word(),
    )
