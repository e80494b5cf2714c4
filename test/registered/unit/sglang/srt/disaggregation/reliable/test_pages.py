"""Which entries of a prepared list stand for which pages."""

import numpy as np
import pytest

from sglang.srt.disaggregation.reliable.pages import entries, join


def test_every_region_has_every_page_in_order():
    found = entries(np.array([5, 2], np.int32), regions=3, slots=10)
    assert found.tolist() == [5, 2, 15, 12, 25, 22]
    assert found.dtype == np.int32


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_pages_of_several_chunks_become_one_list(dtype: type):
    found = join([np.array([1, 2], dtype), np.array([], dtype), np.array([9], dtype)])
    assert found.tolist() == [1, 2, 9]
    assert found.dtype == np.int32
    assert join([np.array([4], dtype)]).dtype == np.int32
