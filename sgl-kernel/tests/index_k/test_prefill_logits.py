import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import blank, check_logits, paged
from sgl_kernel_sm120.index_k.launch import PREFILL_WARPS, PrefillLaunch
from sgl_kernel_sm120.index_k.layout import ShapeError
from sgl_kernel_sm120.index_k.prefill_logits import PAGES, prefill_logits, row_chunks


def run(case, rows=2, block_keys=64):
    out = blank(case)
    launch = PrefillLaunch(rows=rows, block_keys=block_keys, num_warps=PREFILL_WARPS[rows][0])
    assert prefill_logits(*case.args, launch=launch, out=out) is out
    return check_logits(case, out)


@pytest.mark.parametrize("block_keys", [32, 64])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_causal_chunk_of_one_request(rows, block_keys):
    run(paged([59, 60, 61, 62, 63, 64, 65], requests=[0] * 7), rows, block_keys)


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("lens", [[0, 1, 63, 64, 65], [127, 128, 129], [0, 0, 0], [300, 0, 1, 0]])
def test_every_row_a_request_of_its_own(lens, rows):
    run(paged(lens), rows)


@pytest.mark.parametrize("rows", [2, 4])
def test_requests_that_meet_within_a_block_of_rows(rows):
    run(paged([70, 71, 72, 5, 6, 7, 130], requests=[0, 0, 0, 1, 1, 1, 2]), rows)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_common_prefix_and_then_pages_of_their_own(rows):
    case = paged([190, 191, 192, 189], requests=[0, 1, 0, 1])
    case.page_table[1:4:2, 0] = case.page_table[0, 0]
    run(case, rows)


def test_more_pages_than_one_program_takes():
    run(paged([64 * PAGES - 1, 64 * PAGES, 64 * PAGES + 1, 64 * PAGES + 70], requests=[0] * 4, heads=16))


def test_a_page_that_is_not_there_scores_minus_infinity():
    case = paged([200, 201], requests=[0, 0])
    case.page_table[:, 1] = -1
    run(case)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([32, 64]),
    st.integers(0, 2**31),
)
def test_any_mix_of_rows(rows_of, rows, block_keys, seed):
    lens, requests = map(list, zip(*rows_of, strict=True))
    run(paged(lens, requests, heads=16, seed=seed), rows, block_keys)


@given(st.integers(1, 5000), st.integers(1, 1 << 18), st.integers(1, 1 << 28), st.sampled_from([1, 2, 4]))
def test_chunks_cover_the_rows_once_and_stay_within_the_budget(rows, width, budget, multiple):
    chunks = list(row_chunks(rows, width, budget, multiple))
    assert [n for chunk in chunks for n in range(chunk.start, chunk.stop)] == list(range(rows))
    fits = max(1, budget // (4 * width))
    assert all(chunk.stop - chunk.start <= fits for chunk in chunks)
    if fits >= multiple:
        assert all((chunk.stop - chunk.start) % multiple == 0 for chunk in chunks[:-1])


def test_chunks_give_what_the_whole_gives():
    case = paged([100, 101, 102, 103, 104], requests=[0] * 5, heads=16)
    out = blank(case)
    width = out.shape[1]
    parts = list(row_chunks(5, width, budget_bytes=2 * 4 * width))
    assert len(parts) == 3
    for part in parts:
        prefill_logits(
            case.q[part], case.keys, case.weights[part], case.page_table[part], case.lens[part],
            launch=PrefillLaunch(), out=out[part],
        )  # fmt: skip
    check_logits(case, out)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("q", torch.zeros(2, 16, 128)),
        ("q", torch.zeros(2, 24, 128, dtype=torch.bfloat16)),
        ("keys", torch.zeros(4, 32, 128, dtype=torch.bfloat16)),
        ("weights", torch.zeros(2, 8)),
        ("page_table", torch.zeros(3, 2, dtype=torch.int32)),
        ("page_table", torch.zeros(2, 2, dtype=torch.int64)),
        ("lens", torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_a_wrong_argument_is_named(field, value):
    case = paged([5, 6], heads=16)
    setattr(case, field, value)
    with pytest.raises(ShapeError, match=field if field != "q" or value.dtype != torch.bfloat16 else "heads"):
        prefill_logits(*case.args, launch=PrefillLaunch())


def test_a_result_of_the_wrong_shape_is_named():
    case = paged([5, 6], heads=16)
    with pytest.raises(ShapeError, match="out must be"):
        prefill_logits(*case.args, launch=PrefillLaunch(), out=torch.zeros(2, 3))
