"""How the kernels are launched: block sizes, warps, pipeline stages. Fixed per architecture, never tuned at run time.

A launch is chosen before the first graph is captured and stays: a tuner would time kernels inside a capture. Whoever
serves may override a value. What is allowed is here, and the compile gate covers every combination that is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROW_BLOCKS = (4, 8, 16)
ROW_WARPS = (2, 4)
BLOCK_KEYS = (32, 64)
DECODE_WARPS = (4, 8)
DECODE_STAGES = (1, 2, 3, 4)
PROGRAMS = (1, 2, 3, 4, 6, 8, 12, 16)
PREFILL_ROWS = (1, 2, 4)
# A row's 64 heads on too few warps would spill; on too many, a warp would have less than one matrix instruction.
PREFILL_WARPS = {1: (4,), 2: (4, 8), 4: (8,)}
PREFILL_STAGES = (1, 2, 3)


class LaunchError(ValueError):
    """A launch parameter has a value that no kernel was compiled and checked with."""


def _check(kernel: str, name: str, value: int, allowed: tuple[int, ...]) -> None:
    if value not in allowed:
        raise LaunchError(f"{kernel}: {name}={value} is not one of {', '.join(map(str, allowed))}")


@dataclass(frozen=True)
class RowsLaunch:
    """Store and query preparation: ``rows`` of 128 values per program."""

    rows: int = 4
    num_warps: int = 4

    def __post_init__(self) -> None:
        _check("store or query", "rows", self.rows, ROW_BLOCKS)
        _check("store or query", "num_warps", self.num_warps, ROW_WARPS)


@dataclass(frozen=True)
class DecodeLaunch:
    """Decode logits: ``block_keys`` keys per step of a program, ``num_stages - 1`` such blocks on their way;
    ``programs`` per multiprocessor are aimed at when the keys of a row are split."""

    block_keys: int = 64
    num_warps: int = 4
    num_stages: int = 2
    programs: int = 6

    def __post_init__(self) -> None:
        _check("decode logits", "block_keys", self.block_keys, BLOCK_KEYS)
        _check("decode logits", "num_warps", self.num_warps, DECODE_WARPS)
        _check("decode logits", "num_stages", self.num_stages, DECODE_STAGES)
        _check("decode logits", "programs", self.programs, PROGRAMS)


@dataclass(frozen=True)
class PrefillLaunch:
    """Prefill logits: a program scores ``rows`` query rows at a time, against ``block_keys`` keys per step."""

    rows: int = 2
    block_keys: int = 64
    num_warps: int = 4
    num_stages: int = 2

    def __post_init__(self) -> None:
        _check("prefill logits", "rows", self.rows, PREFILL_ROWS)
        _check("prefill logits", "block_keys", self.block_keys, BLOCK_KEYS)
        _check(f"prefill logits of {self.rows} rows", "num_warps", self.num_warps, PREFILL_WARPS[self.rows])
        _check("prefill logits", "num_stages", self.num_stages, PREFILL_STAGES)


@dataclass(frozen=True)
class IndexKLaunch:
    """One launch per kernel."""

    store: RowsLaunch = field(default_factory=RowsLaunch)
    query: RowsLaunch = field(default_factory=lambda: RowsLaunch(rows=16))
    decode: DecodeLaunch = field(default_factory=DecodeLaunch)
    prefill: PrefillLaunch = field(default_factory=PrefillLaunch)


# By the compile gate, three decode programs and two prefill programs fit on an SM120 multiprocessor, four and three on
# an SM90 one; each pair of programs hides the other's loads and sums.
SM120 = IndexKLaunch()
SM90 = IndexKLaunch(decode=DecodeLaunch(programs=8))


def defaults(major: int) -> IndexKLaunch:
    """The launch for a GPU of compute capability ``major``.x; the one with the smaller demands where it is unknown."""
    return SM90 if major in (9, 10) else SM120
