"""Pool sizes against what upstream's real pool of those sizes allocates, for budgets from 1 to 80 GB."""

import pytest

from harness.lab import Lab, LabError

GB = 10**9
BUDGETS = [GB, 2 * GB, 3 * GB, 5 * GB, 8 * GB, 13 * GB, 20 * GB, 32 * GB, 40 * GB, 64 * GB, 80 * GB]
ALLOCATED = "harness.dsv4.sizes:allocated"
SCRATCH = 64 << 20
# Pages that upstream's pools reserve beyond their size and its sizing does not price, whatever the budget.
RESERVED = 20 * 10**6


def fits(row: dict, scratch: int = 0, over: int = 0) -> bool:
    """Whether pools and scratch take at most the budget, and at least 99.5 % of it; ``over``: bytes it may exceed."""
    used = row["allocated"] + scratch
    return 0.995 * row["budget"] <= used <= row["budget"] + over


@pytest.mark.parametrize("swa_ratio", [None, 0.1])
def test_with_bf16_keys_pools_and_scratch_fit_every_budget(lab: Lab, swa_ratio: float | None):
    mib = str(SCRATCH >> 20)
    rows = lab.call(ALLOCATED, BUDGETS, 2, False, swa_ratio, on=True, SGLANG_DSV4_BF16_INDEX_K_LOGITS_MIB=mib)
    assert [row["budget"] for row in rows if not fits(row, SCRATCH)] == []


def test_with_many_requests_too(lab: Lab):
    rows = lab.call(ALLOCATED, [budget for budget in BUDGETS if budget >= 20 * GB], 96, on=True)
    assert [row["budget"] for row in rows if not fits(row, 256 << 20)] == []


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("swa_ratio", [None, 0.1])
def test_sizing_and_pool_agree_to_the_byte(lab: Lab, on: bool, swa_ratio: float | None):
    for row in lab.call(ALLOCATED, BUDGETS[1:], 2, False, swa_ratio, on=on):
        assert sum(row["by_kind"].values()) == row["allocated"]


@pytest.mark.parametrize("swa_ratio", [None, 0.1])
def test_without_the_variable_upstreams_pools_exceed_by_their_reserved_pages_only(lab: Lab, swa_ratio: float | None):
    rows = lab.call(ALLOCATED, BUDGETS, 2, False, swa_ratio, on=False)
    assert [row["budget"] for row in rows if not fits(row, over=RESERVED)] == []


@pytest.mark.parametrize("swa_ratio", [None, 0.1])
def test_sizing_that_was_not_told_of_the_larger_keys_fails(lab: Lab, swa_ratio: float | None):
    rows = lab.call(ALLOCATED, BUDGETS, 2, True, swa_ratio, on=True)
    assert not any(fits(row, over=RESERVED) for row in rows)
    over = next(row["allocated"] - row["budget"] for row in rows if row["budget"] == 40 * GB)
    assert over > 3 * GB


@pytest.mark.parametrize("swa_ratio", [None, 0.1])
def test_a_token_costs_651_bytes_more(lab: Lab, swa_ratio: float | None):
    off, on = (lab.call(ALLOCATED, [20 * GB], 2, False, swa_ratio, on=on)[0]["per_token"] for on in (False, True))
    assert on - off == 21 / 4 * (256 - 132)


def test_no_room_beside_the_scratch_is_said(lab: Lab):
    with pytest.raises(LabError, match=r"leave.? no room .*"):
        lab.call(ALLOCATED, [GB], 2, on=True, SGLANG_DSV4_BF16_INDEX_K_LOGITS_MIB="600")
