"""The interpreted kernels against float64, over batches, heads, candidates, page layouts and splits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_kernel_sm120.sparse_mla import reference
from sgl_kernel_sm120.sparse_mla.decode import sparse_decode
from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS, AttendLaunch
from sgl_kernel_sm120.sparse_mla.layout import Candidates, ShapeError, as_pages
from sgl_kernel_sm120.sparse_mla.merge import merge_kernel
from sparse_cases import C4, C128, SCALE, TOLERANCE, Case, case, run

EDGES = [0, 1, 63, 64, 65]


@pytest.mark.parametrize(("rows", "heads", "splits"), [(1, 64, 1), (1, 32, 7), (3, 16, 3)])
def test_the_whole_window_and_512_selected_keys(rows: int, heads: int, splits: int):
    run(case([128] * rows, [512] * rows, heads=heads), splits)


@pytest.mark.parametrize(("rows", "heads", "splits"), [(64, 16, 1), (65, 2, 3), (96, 16, 1)])
def test_large_batches_of_ragged_rows(rows: int, heads: int, splits: int):
    window = [(0, 1, 33, 0)[row % 4] for row in range(rows)]
    extra = [(1, 0, 0, 0, 5)[row % 5] for row in range(rows)]
    window[-1], extra[-1] = 128, 512
    run(case(window, extra, heads=heads, holes=0.1), splits)


@pytest.mark.parametrize("slots", [C4, C128])
@pytest.mark.parametrize("block_t", [16, 32])
def test_numbers_of_candidates_at_the_edges_of_tiles(slots: int, block_t: int):
    run(case([128, 64, 0, 1, 63], EDGES, slots=slots, width=128), 1, block_t)
    run(case(EDGES, [0, 64, 65, 1, 0], slots=slots, width=128), 3, block_t)


def test_a_layer_with_a_window_only():
    run(case([*EDGES, 127, 128], None), splits=1)
    run(case([*EDGES, 127, 128], None), splits=3)


@pytest.mark.parametrize("slots", [C4, C128])
def test_any_number_of_splits_gives_the_same_result(slots: int):
    one = case([7, 64], [130, 0], slots=slots, width=192, holes=0.05)
    first, lse = run(one, 1, 16)
    for splits in (3, 7, 40):
        found, level = run(one, splits, 16)
        assert (found - first).abs().max() <= TOLERANCE
        assert torch.allclose(level, lse, rtol=0, atol=TOLERANCE)


def test_the_most_splits_that_there_can_be_are_merged():
    parts, levels = torch.randn(1, MAX_SPLITS, 2, 512), torch.randn(1, MAX_SPLITS, 2) * 8
    levels[0, ::3, 0] = -torch.inf
    parts[0, ::3, 0] = 0
    sink = torch.tensor([1.0, -1.0])
    out, lse = torch.empty(1, 2, 512), torch.empty(1, 2)
    merge_kernel[(2, 1)](
        parts, levels, sink, out, lse, 2, MAX_SPLITS, MAX_SPLITS=MAX_SPLITS, BLOCK_S=8, ROUND=False, UPCAST=True
    )
    natural = levels.double() * math.log(2)
    level = natural.logsumexp(1)
    weights = (natural - torch.logaddexp(level, sink.double())[:, None]).exp()
    assert torch.allclose(out.double(), (weights[..., None] * parts).sum(1), rtol=0, atol=TOLERANCE)
    assert torch.allclose(lse.double(), level, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("splits", [1, 3])
def test_rows_without_candidates_are_zero_with_an_lse_of_minus_infinity(splits: int):
    one = case([0, 64, 5], [0, 64, 0], width=64)
    one.window.indices[1] = -1
    one.extra.indices[1] = -1
    found, lse = run(one, splits)
    assert (found[:2] == 0).all()
    assert (lse[:2] == -torch.inf).all()
    assert lse[2].isfinite().all()


def test_holes_are_skipped_wherever_they_are():
    one = case([128, 128], [64, 64], width=64)
    one.window.indices[0, :100] = -1
    one.extra.indices[0, 1:] = -1
    one.window.indices[1, ::2] = -1
    run(one, 1)
    run(one, 7)


def test_lengths_beyond_the_list_are_cut_and_negative_ones_are_none():
    one = case([128, 10], [64, 5], width=64)
    expected = reference.attend(*one.args)[0]
    one.window.lens[0], one.extra.lens[0] = 1000, 65
    one.extra.lens[1] = 0
    expected[1] = reference.attend(*one.args)[0][1]
    one.extra.lens[1] = -3
    found, _ = sparse_decode(*one.args, launch=AttendLaunch(), splits=3, out=torch.empty(one.q.shape))
    assert (found.double() - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("splits", [1, 3])
def test_sinks_from_none_to_all(splits: int):
    one = case([20], None)
    one.sink[:4] = torch.tensor([-torch.inf, 0.0, 200.0, -200.0])
    found, _ = run(one, splits)
    assert found[0, 2].abs().max() < 1e-6  # the sink takes it all
    assert torch.allclose(found[0, 0], run(Case(one.q, one.window, None, torch.full((16,), -torch.inf)), 1)[0][0, 0])


@pytest.mark.parametrize("splits", [1, 3])
def test_large_scores_neither_overflow_nor_lose_the_rest(splits: int):
    one = case([40], [40], width=64)
    # Scores of some 100, of which fp32 keeps five decimals.
    run(Case((one.q * 40).bfloat16(), one.window, one.extra, one.sink), splits, tolerance=2e-4)


def test_heads_that_are_no_multiple_of_16_as_with_tensor_parallel_8():
    run(case([30], [20], width=64, heads=8), 1)
    run(case([30], [20], width=64, heads=24), 3)


def test_several_rows_of_a_request_share_its_slots():
    """Verification of drafts: each row sees one key more than the one before."""
    one = case([13], [6], width=64)
    window, extra = (
        Candidates(lst.pages, lst.slots, lst.indices.repeat(4, 1), (lst.lens + torch.arange(-3, 1)).int())
        for lst in (one.window, one.extra)
    )
    run(Case(torch.randn(4, 16, 512).bfloat16(), window, extra, one.sink), 3)


def test_queries_cut_from_padded_ones():
    one = case([30, 2], [20, 1], width=64)
    padded = torch.full((2, 64, 512), torch.nan).bfloat16()
    padded[:, :16] = one.q
    run(Case(padded[:, :16], one.window, one.extra, one.sink), 3)


@pytest.mark.parametrize("splits", [1, 3])
def test_bf16_is_the_rounding_of_the_fp32_result(splits: int):
    one = case([30, 0], [20, 1], width=64)
    exact, lse = run(one, splits)
    rounded, level = sparse_decode(*one.args, launch=AttendLaunch(block_t=32), splits=splits)
    assert torch.equal(rounded, exact.bfloat16())
    assert torch.equal(level, lse)


def test_no_rows():
    one = case([4], [4], width=64)
    none = [Candidates(lst.pages, lst.slots, lst.indices[:0], lst.lens[:0]) for lst in (one.window, one.extra)]
    out, lse = sparse_decode(one.q[:0], *none, one.sink, SCALE, launch=AttendLaunch(), splits=1)
    assert out.shape == (0, 16, 512)
    assert lse.shape == (0, 16)


@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 128), st.integers(0, 128)), min_size=1, max_size=3),
    st.sampled_from([C4, C128]),
    st.sampled_from([16, 32]),
    st.integers(1, 12),
    st.integers(0, 2**31),
)
def test_any_rows(rows: list[tuple[int, int]], slots: int, block_t: int, splits: int, seed: int):
    window, extra = zip(*rows, strict=True)
    run(case(list(window), list(extra), slots=slots, width=128, holes=0.2, seed=seed), splits, block_t)


def test_pages_are_those_behind_upstreams_view():
    pages = torch.randint(0, 255, (3, 1728), dtype=torch.uint8)
    view = pages[:, : 2 * 584].view(3, 2, 1, 584)
    seen, slots = as_pages(view)
    assert slots == 2
    assert torch.equal(seen, pages)
    assert seen.data_ptr() == pages.data_ptr()
    with pytest.raises(ShapeError, match="584"):
        as_pages(torch.zeros(3, 2, 1, 528, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"q": torch.zeros(2, 16, 512)}, "q must be bfloat16"),
        ({"sink": torch.zeros(8)}, "sink must be"),
        ({"splits": 0}, "splits must be 1 to"),
        ({"splits": MAX_SPLITS + 1}, "splits must be 1 to"),
        ({"out": torch.zeros(1, 16, 512)}, "out must be"),
        ({"q": torch.zeros(3, 16, 512).bfloat16()}, "candidates of 2 rows, q has 3"),
    ],
)
def test_a_wrong_argument_is_named(changed: dict, named: str):
    one = case([4, 5], [4, 4], width=64)
    base = {"q": one.q, "window": one.window, "extra": one.extra, "sink": one.sink, "scale": SCALE, "splits": 1}
    with pytest.raises(ShapeError, match=named):
        sparse_decode(**{**base, **changed}, launch=AttendLaunch())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pages": torch.zeros(2, 37440)}, "pages must be"),
        ({"slots": 65}, "a page of 65 slots"),
        ({"indices": torch.zeros(2, 64)}, "indices must be"),
        ({"lens": torch.zeros(3, dtype=torch.int32)}, "lens must be"),
    ],
)
def test_wrong_candidates_are_named(changed: dict, named: str):
    base = {
        "pages": torch.zeros(2, 37440, dtype=torch.uint8),
        "slots": 64,
        "indices": torch.zeros(2, 64, dtype=torch.int32),
        "lens": torch.zeros(2, dtype=torch.int32),
    }
    with pytest.raises(ShapeError, match=named):
        Candidates(**{**base, **changed})
