"""How the attention kernel is launched: keys per step, warps, pipeline stages. Chosen at start-up, never at run time.

What may be chosen is what the compile gate let pass; a test compares the numbers here with the gate's kept table.
"""

from __future__ import annotations

from dataclasses import dataclass

from sgl_kernel_sm120.gate.arch import ARCHS, SM90A, SM120A
from sgl_kernel_sm120.index_k.launch import LaunchError

BLOCK_T = (16, 32)
NUM_WARPS = (4, 8)
NUM_STAGES = (1, 2, 3)
MAX_SPLITS = 256

# Resident programs per multiprocessor, on sm_120a and on sm_90a, by (block_t, num_warps, num_stages).
RESIDENT = {
    (16, 4, 1): (2, 2),
    (16, 4, 2): (1, 2),
    (16, 4, 3): (1, 2),
    (16, 8, 1): (2, 2),
    (16, 8, 2): (1, 2),
    (16, 8, 3): (1, 1),
    (32, 4, 1): (2, 2),
    (32, 4, 2): (1, 2),
    (32, 8, 1): (1, 1),
    (32, 8, 2): (1, 1),
}
# Bytes of shared memory of those that do not fit a block of every architecture.
TOO_LARGE = {(32, 4, 3): 147456, (32, 8, 3): 147456}

__all__ = ["BLOCK_T", "MAX_SPLITS", "NUM_STAGES", "NUM_WARPS", "RESIDENT", "AttendLaunch", "LaunchError"]


@dataclass(frozen=True)
class AttendLaunch:
    """``block_t``: keys of a step (a tile). Raises ``LaunchError`` for what does not fit, with the gate's number.

    The defaults put two programs on a multiprocessor, each of which computes while the other waits for its keys; the
    other combinations of eight warps leave one.
    """

    block_t: int = 16
    num_warps: int = 8
    num_stages: int = 1

    def __post_init__(self) -> None:
        for name, allowed in (("block_t", BLOCK_T), ("num_warps", NUM_WARPS), ("num_stages", NUM_STAGES)):
            value = getattr(self, name)
            if value not in allowed:
                raise LaunchError(f"sparse decode: {name}={value} is not one of {', '.join(map(str, allowed))}")
        if self.key in TOO_LARGE:
            raise LaunchError(
                f"sparse decode: block_t={self.block_t} with num_stages={self.num_stages} takes {TOO_LARGE[self.key]} "
                f"bytes of shared memory; a block has {SM120A.shared_per_block}"
            )

    @property
    def key(self) -> tuple[int, int, int]:
        return self.block_t, self.num_warps, self.num_stages

    def resident(self, major: int) -> int:
        """Programs that a multiprocessor of a GPU of compute capability ``major``.x holds; 1 on an unknown one."""
        names = {arch.capability // 10: name for name, arch in ARCHS.items()}
        return dict(zip((SM120A.name, SM90A.name), RESIDENT[self.key], strict=True)).get(names.get(major, ""), 1)
