"""The launch of the index-K kernels and the memory for their scores, as the environment says."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from sgl_kernel_sm120.index_k.launch import IndexKLaunch, defaults
from sglang_pd.environ import EnvChoice, envs

MIB = 1 << 20


def scratch_bytes() -> int:
    """Bytes that the scores of one layer may take at a time; left free when the pools are sized."""
    return envs.SGLANG_DSV4_BF16_INDEX_K_LOGITS_MIB.get() * MIB


def launch_for(major: int) -> IndexKLaunch:
    """The launch on a GPU of compute capability ``major``.x. Raises ``LaunchError`` for values that do not fit."""
    base = defaults(major)
    return IndexKLaunch(
        store=_overridden(
            base.store,
            rows=envs.SGLANG_DSV4_BF16_INDEX_K_STORE_ROWS,
            num_warps=envs.SGLANG_DSV4_BF16_INDEX_K_STORE_NUM_WARPS,
        ),
        query=_overridden(
            base.query,
            rows=envs.SGLANG_DSV4_BF16_INDEX_K_QUERY_ROWS,
            num_warps=envs.SGLANG_DSV4_BF16_INDEX_K_QUERY_NUM_WARPS,
        ),
        decode=_overridden(
            base.decode,
            block_keys=envs.SGLANG_DSV4_BF16_INDEX_K_DECODE_BLOCK_KEYS,
            num_warps=envs.SGLANG_DSV4_BF16_INDEX_K_DECODE_NUM_WARPS,
            num_stages=envs.SGLANG_DSV4_BF16_INDEX_K_DECODE_NUM_STAGES,
            programs=envs.SGLANG_DSV4_BF16_INDEX_K_DECODE_PROGRAMS,
        ),
        prefill=_overridden(
            base.prefill,
            rows=envs.SGLANG_DSV4_BF16_INDEX_K_PREFILL_ROWS,
            block_keys=envs.SGLANG_DSV4_BF16_INDEX_K_PREFILL_BLOCK_KEYS,
            num_warps=envs.SGLANG_DSV4_BF16_INDEX_K_PREFILL_NUM_WARPS,
            num_stages=envs.SGLANG_DSV4_BF16_INDEX_K_PREFILL_NUM_STAGES,
        ),
    )


def _overridden(launch: Any, **fields: EnvChoice) -> Any:
    values = {name: field.get() for name, field in fields.items()}
    return replace(launch, **{name: value for name, value in values.items() if value is not None})


@functools.cache
def launch(device: torch.device) -> IndexKLaunch:
    """The launch on ``device``; read from the environment once, so that it is the same in and out of graphs."""
    return launch_for(torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 for the CPU, on which kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
