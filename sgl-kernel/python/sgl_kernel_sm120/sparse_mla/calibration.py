"""A card's costs of the sparse decode, as a file: written by :mod:`sgl_kernel_sm120.tune`, checked whenever it is read.

JSON, one object. Costs are microseconds. ``kernel`` is a digest of the kernels, their launch and triton's version: the
costs of other kernels say nothing about these.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sgl_kernel_sm120.sparse_mla.configs import configs
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch, LaunchError
from sgl_kernel_sm120.sparse_mla.split import Costs, Machine

VERSION = 1


class CalibrationError(ValueError):
    """A table cannot be read, or is of another card or other kernels; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Calibration:
    """``gpu``: its name as CUDA gives it. ``error``: the median of the relative errors of the fit."""

    gpu: str
    capability: int
    multiprocessors: int
    launch: AttendLaunch
    costs: Costs
    error: float
    kernel: str
    version: int = VERSION

    def machine(self) -> Machine:
        return Machine(self.multiprocessors, self.launch.resident(self.capability // 10), self.costs)


def digest(launch: AttendLaunch, capability: int) -> str:
    """16 hex digits of the attention kernel as ``launch`` launches it on a GPU of ``capability`` (120 for 12.0)."""
    name = f"attend keys={launch.block_t} warps={launch.num_warps} stages={launch.num_stages}"
    return next(config for config in configs() if config.name == name).digest(f"sm_{capability}")


def write(path: Path, calibration: Calibration) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(calibration), indent=2) + "\n")


def read(path: Path) -> Calibration:
    """Raises :class:`CalibrationError`."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: {error}") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise CalibrationError(f"{path}: not a table of version {VERSION}")
    try:
        table = Calibration(
            **{**found, "launch": AttendLaunch(**found["launch"]), "costs": Costs(**_numbers(found["costs"]))}
        )
    except (KeyError, TypeError, ValueError, LaunchError) as error:
        raise CalibrationError(f"{path}: {type(error).__name__}: {error}") from error
    for field, kind in (("gpu", str), ("capability", int), ("multiprocessors", int), ("error", float), ("kernel", str)):
        if not isinstance(getattr(table, field), kind):
            raise CalibrationError(f"{path}: {field} is not a {kind.__name__}")
    if table.multiprocessors < 1:
        raise CalibrationError(f"{path}: {table.multiprocessors} multiprocessors")
    return table


def check(path: Path, table: Calibration, gpu: str, multiprocessors: int, launch: AttendLaunch) -> None:
    """Raise :class:`CalibrationError` unless ``table`` is of this card, this launch and the present kernels."""
    again = "write a new one with python -m sgl_kernel_sm120.tune"
    if (table.gpu, table.multiprocessors) != (gpu, multiprocessors):
        raise CalibrationError(
            f"{path} is of {table.gpu} ({table.multiprocessors} multiprocessors), this is {gpu} ({multiprocessors}); "
            f"{again}"
        )
    if table.launch != launch:
        raise CalibrationError(f"{path} is of {table.launch}, served is {launch}; {again}")
    if table.kernel != digest(launch, table.capability):
        raise CalibrationError(f"{path} is of other kernels or another triton; {again}")


def _numbers(costs: Any) -> dict[str, float]:
    names = {field.name for field in fields(Costs)}
    if not isinstance(costs, dict) or set(costs) != names:
        raise ValueError(f"costs must be {sorted(names)}")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in costs.values()):
        raise ValueError("a cost is no number")
    return costs
