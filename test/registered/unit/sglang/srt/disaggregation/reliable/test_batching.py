"""How many chunks share a write."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable.batching import ALWAYS, Limits, how_many

LIMITS = Limits(in_flight=8, batch=4)


@dataclass
class Chunk:
    bytes: int
    alone: bool = False


def chunks(*sizes: int) -> list[Chunk]:
    return [Chunk(size) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "writes", "in_flight", "expected"),
    [
        ((), 0, 0, 0),
        ((1, 1, 1), 0, 0, 3),
        ((1, 1, 1, 1, 1), 0, 0, 4),
        ((3, 2), 0, 0, 1),
        ((100,), 0, 0, 1),
        ((100,), ALWAYS - 1, 100, 1),
        ((100,), ALWAYS, 1, 0),
        ((1, 100), 0, 0, 1),
        ((1, 1), ALWAYS, 7, 1),
        ((1, 1), 1, 8, 1),
        ((1,), ALWAYS, 8, 0),
        ((0, 0, 4, 1), 0, 0, 3),
        ((0,), ALWAYS, 8, 1),
    ],
)
def test_small_chunks_share_a_write_within_both_limits(
    sizes: tuple[int, ...], writes: int, in_flight: int, expected: int
):
    assert how_many(chunks(*sizes), writes, in_flight, LIMITS) == expected


def test_one_that_must_be_alone_is():
    assert how_many([Chunk(1, alone=True), Chunk(1)], 0, 0, LIMITS) == 1
    assert how_many([Chunk(1), Chunk(1, alone=True)], 0, 0, LIMITS) == 1


@given(st.lists(st.integers(0, 20)), st.integers(0, 4), st.integers(0, 12))
def test_never_over_a_limit_and_never_stuck(sizes: list[int], writes: int, in_flight: int):
    taken = sizes[: how_many(chunks(*sizes), writes, in_flight, LIMITS)]
    if len(taken) > 1:
        assert sum(taken) <= LIMITS.batch
    if writes >= ALWAYS or len(taken) > 1:
        assert in_flight + sum(taken) <= max(LIMITS.in_flight, in_flight)
    if sizes and writes < ALWAYS:
        assert taken
