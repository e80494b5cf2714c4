"""The sparse decode's backend, launch, splits and scratch, as the environment says; each is decided once."""

from __future__ import annotations

import functools

import torch

from sgl_kernel_sm120.sparse_mla import calibration
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch
from sgl_kernel_sm120.sparse_mla.split import Machine, Work, choose
from sgl_kernel_sm120.sparse_mla.split import scratch_bytes as bytes_of
from sglang.srt.layers.attention.dsv4_sm120.backend import VARIABLE
from sglang_pd.environ import envs, upstream

# Calls outside graphs take their scratch from the common memory, those in graphs from the graphs' own.
POOLS = 2


@functools.cache
def word() -> str | None:
    return upstream(VARIABLE)


@functools.cache
def launch() -> AttendLaunch:
    """Raises ``LaunchError`` for values that do not go together."""
    fields = {
        "block_t": envs.SGLANG_SM120_MMA_BLOCK_T.get(),
        "num_warps": envs.SGLANG_SM120_MMA_NUM_WARPS.get(),
        "num_stages": envs.SGLANG_SM120_MMA_NUM_STAGES.get(),
    }
    return AttendLaunch(**{name: value for name, value in fields.items() if value is not None})


def scratch_bytes() -> int:
    """Bytes set aside before the pools are sized: the most that a call takes, once per pool of memory."""
    return POOLS * bytes_of(envs.SGLANG_SM120_MMA_TARGET_CTAS.get())


@functools.cache
def machine(device: torch.device) -> Machine:
    """What the splits are chosen for; with the table of ``SGLANG_SM120_MMA_TABLE``, by that card's costs.

    On the CPU, where kernels are interpreted, that of one multiprocessor. Raises ``CalibrationError``.
    """
    if device.type != "cuda":
        return Machine(1, launch().resident(12))
    properties = torch.cuda.get_device_properties(device)
    path = envs.SGLANG_SM120_MMA_TABLE.get()
    if path is None:
        return Machine(properties.multi_processor_count, launch().resident(properties.major))
    table = calibration.read(path)
    calibration.check(path, table, properties.name, properties.multi_processor_count, launch())
    return table.machine()


def splits(rows: int, heads: int, widths: tuple[int, ...], device: torch.device) -> int:
    """Splits of a call: the same for the same shapes, so that a captured graph's never change."""
    work = Work(rows, heads, widths, launch().block_t)
    return choose(work, machine(device), envs.SGLANG_SM120_MMA_TARGET_CTAS.get())
