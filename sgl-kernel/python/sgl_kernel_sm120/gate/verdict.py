"""Does a measured configuration pass, and why not."""

from __future__ import annotations

from dataclasses import dataclass

from sgl_kernel_sm120.gate.arch import Arch
from sgl_kernel_sm120.gate.compiler import Measured
from sgl_kernel_sm120.gate.config import KernelConfig


@dataclass(frozen=True)
class Row:
    """A configuration on an architecture. ``blocks``: resident per multiprocessor. ``failures``: empty if it passes."""

    config: str
    arch: str
    digest: str
    warps: int
    stages: int
    shared: int
    registers: int
    spilled: int
    matrix: int
    blocks: int
    failures: str

    @property
    def passes(self) -> bool:
        return not self.failures


def judge(config: KernelConfig, arch: Arch, measured: Measured) -> Row:
    blocks = arch.resident_blocks(measured.shared, measured.registers, config.num_warps)
    wanted = config.blocks.get(arch.name, 1)
    failures = []
    if measured.shared > arch.shared_per_block:
        failures.append(f"{measured.shared} bytes of shared memory, a block has {arch.shared_per_block}")
    if measured.spilled:
        failures.append(f"{measured.spilled} bytes spilled")
    if config.matrix and not measured.matrix:
        failures.append(f"no {config.matrix_on(arch.matrix)}")
    if blocks < wanted:
        failures.append(f"{blocks} blocks per multiprocessor, {wanted} are counted on")
    return Row(
        config.name,
        arch.name,
        config.digest(arch.name),
        config.num_warps,
        config.num_stages,
        measured.shared,
        measured.registers,
        measured.spilled,
        measured.matrix,
        blocks,
        "; ".join(failures),
    )
