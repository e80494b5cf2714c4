import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import check_rounded, freqs
from sgl_kernel_sm120.index_k import plans, reference
from sgl_kernel_sm120.index_k.launch import RowsLaunch
from sgl_kernel_sm120.index_k.layout import ShapeError
from sgl_kernel_sm120.index_k.store import store_keys

EPS = 1e-6


def run(plan, out_loc, decode, kv=None, weight=None, pages=4, rows=4):
    """Store random keys by ``plan``; check each slot that must be written, and that no other one is."""
    random = torch.Generator().manual_seed(len(plan))
    kv = torch.randn(len(plan), 128, generator=random) if kv is None else kv
    weight = torch.rand(128, generator=random) + 0.5 if weight is None else weight
    keys = torch.full((pages, 64, 128), torch.nan, dtype=torch.bfloat16)
    store_keys(keys, kv, plan, weight, EPS, freqs(), out_loc, decode=decode, launch=RowsLaunch(rows=rows))
    exact = torch.full(keys.shape, torch.nan, dtype=torch.float64)
    reference.store(exact, kv, plan, weight, EPS, freqs(), out_loc, decode)
    written = ~exact.isnan()
    assert torch.equal(~keys.isnan(), written)
    check_rounded(keys[written], exact[written])
    return written.any(-1).flatten().nonzero().flatten().tolist()


def test_decode_stores_at_multiples_of_four_only():
    lengths = [1, 2, 3, 4, 5, 6, 7, 8, 1024, 1025]
    assert run(plans.decode_plan(lengths), torch.arange(10) * 3, decode=True) == [9, 21, 24]


@pytest.mark.parametrize("slots", [[0, 1], [62, 63], [63, 64], [64, 65], [127, 128], [255, 0]])
def test_slots_at_the_edges_of_pages(slots):
    assert run(plans.decode_plan([4, 8]), torch.tensor(slots), decode=True) == sorted(slots)


def test_a_negative_slot_is_not_stored():
    assert run(plans.decode_plan([4, 8, 12]), torch.tensor([-1, 5, -64]), decode=True) == [5]


def test_rows_that_are_skipped_may_hold_anything():
    kv = torch.randn(4, 128)
    kv[0], kv[2] = torch.nan, torch.inf
    assert run(plans.decode_plan([5, 8, 7, 16]), torch.tensor([1, 2, 3, 4]), decode=True, kv=kv) == [2, 4]


def test_a_padded_request_of_length_zero_is_skipped():
    assert run(plans.decode_plan([0, 8]), torch.tensor([0, 2]), decode=True) == [2]


def test_extend_stores_each_finished_key_at_its_token():
    plan = plans.extend_plan([0, 3], [9, 6])  # tokens 3, 7 of the first; positions 3, 7 of the second: tokens 9, 13
    assert run(plan, torch.arange(15) + 60, decode=False) == [63, 67, 69, 73]


def test_extend_skips_invalid_rows_wherever_they_are():
    plan = plans.extend_plan([0], [12], padded_to=7)
    order = torch.tensor([3, 0, 4, 2, 5, 1, 6])
    kv = torch.randn(7, 128)
    kv[(order >= 3)] = torch.nan
    assert run(plan[order], torch.arange(12), decode=False, kv=kv) == [3, 7, 11]


def test_extend_skips_a_key_whose_slot_is_negative():
    out_loc = torch.arange(12)
    out_loc[7] = -1
    assert run(plans.extend_plan([0], [12]), out_loc, decode=False) == [3, 11]


def test_a_plan_of_invalid_rows_only_stores_nothing():
    assert run(plans.extend_plan([0], [2], padded_to=5), torch.arange(2), decode=False) == []


def test_an_empty_batch_stores_nothing():
    assert run(plans.extend_plan([0], [2]), torch.arange(2), decode=False) == []


@pytest.mark.parametrize("rows", [4, 8, 16])
def test_any_rows_per_program(rows):
    lengths = [4 * (i + 1) for i in range(21)]
    assert run(plans.decode_plan(lengths), torch.arange(21) * 7, decode=True, rows=rows) == [7 * i for i in range(21)]


def test_bf16_input_weight_int32_slots_and_strided_rows():
    kv = torch.randn(3, 300).bfloat16()[:, 100:228]
    weight = torch.rand(128).bfloat16()
    slots = torch.tensor([9, 8, 7], dtype=torch.int32)
    assert run(plans.decode_plan([4, 8, 12]), slots, decode=True, kv=kv, weight=weight) == [7, 8, 9]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_decode_step(data):
    count = data.draw(st.integers(1, 12))
    lengths = data.draw(st.lists(st.integers(0, 2000), min_size=count, max_size=count))
    slots = data.draw(st.lists(st.integers(-3, 255), min_size=count, max_size=count, unique=True))
    written = run(plans.decode_plan(lengths), torch.tensor(slots), decode=True)
    assert written == sorted(s for n, s in zip(lengths, slots, strict=True) if n and n % 4 == 0 and s >= 0)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_extend_batch(data):
    requests = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=4))
    prefixes, extends = zip(*requests, strict=True)
    plan = plans.extend_plan(prefixes, extends)
    plan = plans.extend_plan(prefixes, extends, padded_to=len(plan) + data.draw(st.integers(0, 5)))
    order = data.draw(st.permutations(range(len(plan))))
    tokens = sum(extends)
    slots = data.draw(st.lists(st.integers(-3, 255), min_size=tokens, max_size=tokens, unique=True))
    positions = [p for prefix, extend in requests for p in range(prefix, prefix + extend)]
    written = run(plan[list(order)], torch.tensor(slots, dtype=torch.int64), decode=False)
    assert written == sorted(s for p, s in zip(positions, slots, strict=True) if (p + 1) % 4 == 0 and s >= 0)


def arguments(**changed):
    base = {
        "keys": torch.zeros(2, 64, 128, dtype=torch.bfloat16),
        "kv": torch.zeros(2, 128),
        "plan": plans.decode_plan([4, 8]),
        "weight": torch.ones(128),
        "eps": EPS,
        "freqs": freqs(16),
        "out_loc": torch.arange(2),
    }
    return {**base, **changed}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"keys": torch.zeros(2, 64, 128)}, "keys"),
        ({"keys": torch.zeros(2, 32, 128, dtype=torch.bfloat16)}, "keys"),
        ({"kv": torch.zeros(2, 64)}, "kv"),
        ({"kv": torch.zeros(2, 128, dtype=torch.float64)}, "kv"),
        ({"plan": plans.decode_plan([4])}, "plan"),
        ({"weight": torch.ones(64)}, "weight"),
        ({"freqs": torch.zeros(16, 32)}, "freqs"),
        ({"out_loc": torch.zeros(2)}, "out_loc"),
        ({"out_loc": torch.arange(3)}, "as many slots"),
    ],
)
def test_a_wrong_argument_is_named(changed, named):
    with pytest.raises(ShapeError, match=named):
        store_keys(**arguments(**changed), decode=True, launch=RowsLaunch())
