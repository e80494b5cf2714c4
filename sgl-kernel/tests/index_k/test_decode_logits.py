import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_cases import blank, check_logits, paged
from sgl_kernel_sm120.index_k.decode_logits import decode_logits, splits_for
from sgl_kernel_sm120.index_k.launch import DecodeLaunch


def run(case, block_keys=64, multiprocessors=1, programs=2):
    out = blank(case)
    launch = DecodeLaunch(block_keys=block_keys, programs=programs)
    assert decode_logits(*case.args, launch=launch, multiprocessors=multiprocessors, out=out) is out
    return check_logits(case, out)


@pytest.mark.parametrize("block_keys", [32, 64])
@pytest.mark.parametrize("lens", [[0, 1, 63, 64, 65], [127, 128, 129], [31, 32, 33], [300], [0]])
def test_lengths_at_the_edges_of_pages_and_blocks(lens, block_keys):
    run(paged(lens), block_keys)


@pytest.mark.parametrize("multiprocessors", [1, 2, 7, 100])
def test_any_split_of_the_keys(multiprocessors):
    run(paged([500, 1, 64, 0]), multiprocessors=multiprocessors)


def test_rows_that_share_pages():
    run(paged([200, 130, 64], requests=[0, 0, 0]))


def test_a_page_that_is_not_there_scores_minus_infinity():
    case = paged([200, 70])
    case.page_table[0, 1] = -1
    run(case)


def test_a_length_beyond_the_table_is_cut():
    case = paged([128, 60], spare=0)
    case.lens[0] = 1000
    out = blank(case)
    decode_logits(*case.args, launch=DecodeLaunch(), multiprocessors=1, out=out)
    case.lens[0] = 128
    check_logits(case, out)


def test_a_part_of_larger_tensors():
    whole = paged([100, 64, 3, 129], heads=16)
    part = slice(1, 3)
    case = type(whole)(whole.q[part], whole.keys, whole.weights[part], whole.page_table[part], whole.lens[part])
    run(case)


def test_without_a_result_to_write_to_one_is_made():
    case = paged([5, 64], heads=16)
    out = decode_logits(*case.args, launch=DecodeLaunch(), multiprocessors=1)
    assert out.shape == (2, 128)
    assert out[0, :5].isfinite().all()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 260), min_size=1, max_size=4),
    st.sampled_from([16, 32]),
    st.sampled_from([32, 64]),
    st.integers(1, 9),
    st.integers(0, 2**31),
)
def test_any_batch(lens, heads, block_keys, multiprocessors, seed):
    run(paged(lens, heads=heads, seed=seed), block_keys, multiprocessors)


@given(st.integers(1, 512), st.integers(1, 1 << 18), st.integers(1, 200))
def test_splits_fill_the_gpu_and_never_outnumber_the_blocks(rows, width, multiprocessors):
    launch = DecodeLaunch()
    splits = splits_for(rows, width, multiprocessors, launch)
    blocks = -(-width // launch.block_keys)
    assert 1 <= splits <= blocks
    assert splits == blocks or splits * rows >= multiprocessors * launch.programs
