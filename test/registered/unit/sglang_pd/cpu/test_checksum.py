import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sglang_pd.cpu import checksum


@pytest.fixture
def buffers() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, 256, (8, size), np.uint8) for size in (16, 32)]


def digest(buffers, pages, state=()) -> int:
    computer = SimpleNamespace(
        _kv_data_ptrs=[buffer.ctypes.data for buffer in buffers],
        _kv_item_lens=[buffer.shape[1] for buffer in buffers],
        _state_data_ptrs=list(state),
    )
    return checksum.compute(pytest.fail, computer, torch.tensor(pages))


def test_it_is_the_checksum_of_the_pages_in_their_order(buffers):
    expected = zlib.adler32(b"".join(buffer[page].tobytes() for buffer in buffers for page in (5, 2)))
    assert digest(buffers, [5, 2]) == expected
    assert digest(buffers, [2, 5]) != expected


def test_other_pages_do_not_matter_and_every_byte_of_these_does(buffers):
    before = digest(buffers, [5, 2])
    buffers[0][3, 0] ^= 1
    assert digest(buffers, [5, 2]) == before
    buffers[1][2, 31] ^= 1
    assert digest(buffers, [5, 2]) != before


def test_no_pages_have_a_checksum_too(buffers):
    """0 stands for none."""
    assert digest(buffers, []) == 1


def test_state_buffers_are_refused(buffers):
    with pytest.raises(ValueError, match="state"):
        digest(buffers, [1], state=[1])
