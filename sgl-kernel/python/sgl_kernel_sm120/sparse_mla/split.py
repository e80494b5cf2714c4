"""Among how many programs a row's candidates are divided: a pure choice from shapes, the card and costs.

Too few programs leave multiprocessors idle; too many take a second wave, or drown in merging parts. The choice is the
one whose predicted time is least:

    waves * (ceil(tiles / splits) * tile + fixed) + merge        waves = ceil(rows * head blocks * splits / slots)

with ``slots`` programs resident at a time, and a merge that costs its launch and the parts it writes and reads. What
this assumes: a program takes the same time for a tile however many run beside it; all programs of a wave end together;
every row has as many candidates as its list is wide. Lists are as wide as shapes say, so that a captured graph of a
batch size has one choice for good.
"""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass

from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS
from sgl_kernel_sm120.sparse_mla.shape import BLOCK_H, HEAD_DIM

# The least round number at which no choice for 1 to 96 rows of 16, 32 or 64 heads is worse, predicted on 188 SMs, than
# reaching for 512 programs or FlashInfer's rule. More gains less than 2 % there up to 128k tokens, and costs scratch.
DEFAULT_TARGET_CTAS = 1024
FLASHINFER_SPLIT = 64  # candidates per split in FlashInfer's decode kernel


@dataclass(frozen=True)
class Costs:
    """All in one unit; without a table from a card, in that of ``tile``, one tile of one program.

    ``fixed``: what a program takes beside its tiles. ``merge``: of the merge's launch. ``part``: of writing and merging
    the parts of one wave of programs. The assumed ones follow from bytes: a part is 32 KiB, written and read, a tile of
    16 keys 9.1 KiB, and parts stay in the L2 cache, which is taken to be three and a half times as fast as memory.
    """

    tile: float = 1.0
    fixed: float = 1.0
    merge: float = 2.0
    part: float = 2.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value} is no cost")
        if self.tile == 0:
            raise ValueError("a tile costs nothing")


@dataclass(frozen=True)
class Machine:
    """``resident``: programs of the attention kernel that a multiprocessor holds, by the compile gate."""

    multiprocessors: int
    resident: int
    costs: Costs = Costs()

    @property
    def slots(self) -> int:
        return self.multiprocessors * self.resident


@dataclass(frozen=True)
class Work:
    """One call. ``widths``: of its lists of candidates."""

    rows: int
    heads: int
    widths: tuple[int, ...]
    block_t: int

    @property
    def programs(self) -> int:
        """With one split."""
        return self.rows * -(-self.heads // BLOCK_H)

    @property
    def tiles(self) -> int:
        return sum(-(-width // self.block_t) for width in self.widths)


def terms(work: Work, splits: int, machine: Machine) -> tuple[float, float, float, float]:
    """How many of each cost the makespan has, in their order."""
    programs = work.programs * splits
    waves = -(-programs // machine.slots)
    merged = splits > 1
    return waves * -(-work.tiles // splits), waves, float(merged), programs / machine.slots if merged else 0.0


def makespan(work: Work, splits: int, machine: Machine) -> float:
    """The predicted time, in the unit of the costs."""
    return sum(cost * count for cost, count in zip(astuple(machine.costs), terms(work, splits, machine), strict=True))


@functools.cache
def choose(work: Work, machine: Machine, target_ctas: int) -> int:
    """Splits of the least makespan, the fewest of several; all programs together are at most ``target_ctas`` unless
    there is one split."""
    most = max(1, min(target_ctas // max(1, work.programs), work.tiles, MAX_SPLITS))
    return min(range(1, most + 1), key=lambda splits: (makespan(work, splits, machine), splits))


def reach(work: Work, target_ctas: int) -> int:
    """The rule that :func:`choose` is compared with: enough splits to reach so many programs."""
    return max(1, min(-(-target_ctas // work.programs), work.tiles))


def flashinfer(work: Work) -> int:
    """FlashInfer's rule: one split per 64 candidates of each list."""
    return max(1, sum(-(-width // FLASHINFER_SPLIT) for width in work.widths))


def scratch_bytes(target_ctas: int) -> int:
    """The most bytes that one call takes for its parts, whatever its rows: each program writes 16 heads of 512 fp32
    values and their LSE, and there is more than one split only for up to ``target_ctas`` programs."""
    return target_ctas * BLOCK_H * (HEAD_DIM + 1) * 4
