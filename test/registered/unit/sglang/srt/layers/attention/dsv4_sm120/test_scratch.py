"""Pools and the scratch of partial results together fit the budget, by upstream's real sizing; and what is attached."""

import pytest

from harness.lab import Lab, LabError
from sglang_pd.hooks import HOOKS

GB = 10**9
ALLOCATED = "harness.dsv4.sizes:allocated"
TARGET = "SGLANG_SM120_MMA_TARGET_CTAS"
SCRATCH = 2 * 4096 * 16 * 513 * 4
ROWS = [row for row in HOOKS if row.where == "sm120_mma"]
WRAPPED = [row.target for row in ROWS if row.kind != "resolution"]


def test_with_bf16_index_keys_pools_and_both_scratches_fit(lab: Lab):
    for row in lab.call(ALLOCATED, [5 * GB, 40 * GB], 2, on=True, mma=True, **{TARGET: "4096"}):
        used = row["allocated"] + (256 << 20) + SCRATCH
        assert 0.995 * row["budget"] <= used <= row["budget"]


def test_without_them_the_pools_are_those_of_a_budget_that_is_smaller_by_the_scratch(lab: Lab):
    smaller = lab.call(ALLOCATED, [5 * GB - SCRATCH, 40 * GB - SCRATCH], 2, on=False)
    reserved = lab.call(ALLOCATED, [5 * GB, 40 * GB], 2, on=False, mma=True, **{TARGET: "4096"})
    assert [row["allocated"] for row in reserved] == [row["allocated"] for row in smaller]


def test_no_room_beside_the_scratch_is_said_in_bytes(lab: Lab):
    with pytest.raises(LabError, match=rf"RuntimeError: {SCRATCH // 2} bytes leave no room .* {SCRATCH} bytes"):
        lab.call(ALLOCATED, [SCRATCH // 2], 2, on=False, mma=True, **{TARGET: "4096"})


def test_off_every_target_is_upstreams_own(lab: Lab):
    assert lab.call("harness.dsv4.pools:wrapped", WRAPPED, on=False) == []


@pytest.mark.parametrize("bf16_index_keys", [False, True])
def test_on_every_target_is_wrapped_and_every_row_is_live(lab: Lab, bf16_index_keys: bool):
    """With bf16 index keys two rows have a target in common, and both are there."""
    assert lab.call("harness.dsv4.pools:wrapped", WRAPPED, on=bf16_index_keys, mma=True) == WRAPPED
    assert lab.call("harness.dsv4.pools:not_live", on=bf16_index_keys, mma=True) == {}
