"""What a thread block and a multiprocessor have, by architecture (CUDA C++ programming guide, compute capabilities)."""

from __future__ import annotations

from dataclasses import dataclass

# The driver takes this much shared memory of every block for itself.
RESERVED_SHARED = 1024
REGISTERS_PER_WARP_STEP = 256


@dataclass(frozen=True)
class Arch:
    """``capability``: as triton numbers it. Sizes in bytes. ``matrix``: the instruction of its matrix unit in PTX."""

    name: str
    capability: int
    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    matrix: str
    registers_per_sm: int = 65536

    def resident_blocks(self, shared: int, registers: int, warps: int) -> int:
        """Blocks of ``warps`` warps that a multiprocessor holds at a time, each with so many bytes of shared memory
        and so many registers per thread."""
        per_warp = -(-registers * 32 // REGISTERS_PER_WARP_STEP) * REGISTERS_PER_WARP_STEP
        return min(
            self.shared_per_sm // (shared + RESERVED_SHARED),
            self.registers_per_sm // max(1, per_warp * warps),
            self.threads_per_sm // (32 * warps),
            self.blocks_per_sm,
        )


SM90A = Arch("sm_90a", 90, 232448, 233472, 2048, 32, "wgmma.mma_async")
SM120A = Arch("sm_120a", 120, 101376, 102400, 1536, 24, "mma.sync")
ARCHS = {arch.name: arch for arch in (SM120A, SM90A)}
