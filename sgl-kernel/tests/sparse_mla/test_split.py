"""The split policy against the rules that it replaces, and what bounds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS
from sgl_kernel_sm120.sparse_mla.split import (
    DEFAULT_TARGET_CTAS,
    Costs,
    Machine,
    Work,
    choose,
    makespan,
    reach,
    scratch_bytes,
)
from sgl_kernel_sm120.tune.show import ROWS, choices, table

RTX_PRO_6000 = Machine(188, 2)


@pytest.mark.parametrize("heads", [16, 32, 64])
@pytest.mark.parametrize("block_t", [16, 32])
def test_no_choice_is_worse_than_either_rule(heads: int, block_t: int):
    found = list(choices(RTX_PRO_6000, heads, block_t))
    assert len(found) == 5 * 96
    for one in found:
        assert one.ours[1] <= min(one.reach[1], one.flashinfer[1])


@pytest.mark.parametrize("target_ctas", [512, DEFAULT_TARGET_CTAS])
def test_nor_with_16_heads_at_512_blocks(target_ctas: int):
    for one in choices(RTX_PRO_6000, 16, 16, target_ctas):
        assert one.ours[1] <= min(one.reach[1], one.flashinfer[1])


@pytest.mark.parametrize(("rows", "splits", "reached"), [(1, 40, 40), (16, 20, 32), (96, 3, 6)])
def test_c4_of_16_heads(rows: int, splits: int, reached: int):
    work = Work(rows, 16, (128, 512), 16)
    assert choose(work, RTX_PRO_6000, DEFAULT_TARGET_CTAS) == splits
    assert reach(work, 512) == reached


def test_the_makespan_by_hand():
    """16 rows in 20 splits: 320 programs, one wave of 376, each with 2 of the 40 tiles."""
    work, costs = Work(16, 16, (128, 512), 16), Costs(tile=3.0, fixed=5.0, merge=7.0, part=11.0)
    assert makespan(work, 20, Machine(188, 2, costs)) == pytest.approx(2 * 3 + 5 + 7 + 11 * 320 / 376)
    assert makespan(work, 32, Machine(188, 2, costs)) == pytest.approx(2 * (2 * 3 + 5) + 7 + 11 * 512 / 376)
    assert makespan(work, 1, Machine(188, 2, costs)) == 40 * 3 + 5


def test_dear_merges_are_avoided_and_free_ones_are_not():
    work = Work(96, 16, (128, 512), 16)
    assert choose(work, Machine(188, 2, Costs(merge=1000.0)), 1024) == 1
    assert choose(work, Machine(188, 2, Costs(merge=0.0, part=0.0, fixed=0.0)), 1024) > 3


works = st.builds(
    Work,
    st.integers(1, 600),
    st.sampled_from([8, 16, 32, 64]),
    st.tuples(st.integers(0, 256), st.integers(0, 8192)),
    st.sampled_from([16, 32]),
)


@given(works, st.integers(1, 4096), st.integers(1, 200), st.integers(1, 3))
def test_bounds(work: Work, target_ctas: int, multiprocessors: int, resident: int):
    splits = choose(work, Machine(multiprocessors, resident), target_ctas)
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or (work.programs * splits <= target_ctas and splits <= work.tiles)
    parts = work.programs * splits if splits > 1 else 0
    assert parts * 16 * (512 + 1) * 4 <= scratch_bytes(target_ctas)


@pytest.mark.parametrize("wrong", [{"tile": 0.0}, {"fixed": -1.0}, {"merge": float("inf")}, {"part": float("nan")}])
def test_costs_that_are_none_are_refused(wrong: dict):
    with pytest.raises(ValueError, match=r"cost"):
        Costs(**wrong)


def test_the_table_has_a_line_per_choice():
    found = list(choices(RTX_PRO_6000, 16, 16))
    assert len(table(found).splitlines()) == 1 + 5 * len(ROWS)
