import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import TOLERANCE, check_rounded, freqs
from sgl_kernel_sm120.index_k import reference
from sgl_kernel_sm120.index_k.launch import RowsLaunch
from sgl_kernel_sm120.index_k.layout import ShapeError
from sgl_kernel_sm120.index_k.query import prepare_query


def run(q, weight, positions, rows=16):
    found, weights = prepare_query(q, weight, 0.01, freqs(), positions, launch=RowsLaunch(rows=rows))
    check_rounded(found, reference.query(q, freqs(), positions))
    assert (weights.double() - weight.double() * 0.01).abs().max() <= TOLERANCE
    assert found.shape == q.shape
    assert weights.shape == weight.shape


@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_against_float64(heads, integer):
    positions = torch.tensor([0, 1, 2047], dtype=integer)
    run(torch.randn(3, heads, 128).bfloat16(), torch.randn(3, heads).bfloat16(), positions)


@pytest.mark.parametrize("rows", [4, 8, 16])
def test_any_rows_per_program(rows):
    run(torch.randn(1, 64, 128).bfloat16(), torch.randn(1, 64).bfloat16(), torch.tensor([100]), rows)


def test_rows_and_weights_cut_from_something_wider():
    q = torch.randn(3, 4096).bfloat16()[:, 1024:3072].view(3, 16, 128)
    weight = torch.randn(3, 40).bfloat16()[:, 5:21]
    run(q, weight, torch.tensor([7, 8, 9]))


def test_no_rows():
    q, weights = prepare_query(
        torch.zeros(0, 64, 128),
        torch.zeros(0, 64),
        1.0,
        freqs(),
        torch.zeros(0, dtype=torch.int64),
        launch=RowsLaunch(),
    )
    assert q.shape == (0, 64, 128)
    assert weights.shape == (0, 64)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2047), min_size=1, max_size=4), st.sampled_from([16, 32, 64]), st.integers(0, 2**31))
def test_any_positions(positions, heads, seed):
    random = torch.Generator().manual_seed(seed)
    q = torch.randn(len(positions), heads, 128, generator=random) * 10 ** torch.randn(1, generator=random).item()
    run(q.clamp(-30, 30).bfloat16(), torch.randn(len(positions), heads, generator=random), torch.tensor(positions))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"q": torch.zeros(2, 16, 64)}, "q"),
        ({"weight": torch.zeros(2, 8)}, "weight"),
        ({"positions": torch.zeros(2)}, "positions"),
        ({"freqs": torch.zeros(4, 64, dtype=torch.float64)}, "freqs"),
    ],
)
def test_a_wrong_argument_is_named(changed, named):
    base = {
        "q": torch.zeros(2, 16, 128),
        "weight": torch.zeros(2, 16),
        "freqs": freqs(4),
        "positions": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ShapeError, match=named):
        prepare_query(scale=1.0, launch=RowsLaunch(), **{**base, **changed})
