"""The policy's choices and predicted makespans beside the two rules that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sgl_kernel_sm120.sparse_mla.split import DEFAULT_TARGET_CTAS, Machine, Work, choose, flashinfer, makespan, reach

REACH = 512
ROWS = tuple(range(1, 97))
WINDOW = 128
# Widths of the second list: top-512 of C4; C128 at 8k, 32k and 128k tokens of context; none.
LAYERS = {"window": (), "C4": (512,), "C128@8k": (64,), "C128@32k": (256,), "C128@128k": (1024,)}


@dataclass(frozen=True)
class Choice:
    """``ours``, ``reach``, ``flashinfer``: (splits, makespan) by each rule."""

    layer: str
    rows: int
    programs: int
    ours: tuple[int, float]
    reach: tuple[int, float]
    flashinfer: tuple[int, float]


def choices(
    machine: Machine,
    heads: int,
    block_t: int,
    target_ctas: int = DEFAULT_TARGET_CTAS,
    rows: Sequence[int] = ROWS,
) -> Iterator[Choice]:
    for layer, widths in LAYERS.items():
        for count in rows:
            work = Work(count, heads, (WINDOW, *widths), block_t)
            picked = choose(work, machine, target_ctas), reach(work, REACH), flashinfer(work)
            timed = [(splits, makespan(work, splits, machine)) for splits in picked]
            yield Choice(layer, count, work.programs * picked[0], *timed)


def table(found: Sequence[Choice]) -> str:
    lines = [
        "layer      rows | splits  programs  makespan | reach 512: splits  makespan | FlashInfer's: splits  makespan",
        *(
            f"{one.layer:10s} {one.rows:4d} | {one.ours[0]:6d} {one.programs:9d} {one.ours[1]:9.1f} | "
            f"{one.reach[0]:17d} {one.reach[1]:9.1f} | {one.flashinfer[0]:20d} {one.flashinfer[1]:9.1f}"
            for one in found
        ),
    ]
    return "\n".join(lines)
