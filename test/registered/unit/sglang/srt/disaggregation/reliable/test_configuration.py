"""What keeps a prefill and a decode from working together: every field of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable import configuration
from sglang.srt.disaggregation.reliable.configuration import differences, find, frame

ONE = {
    "page_size": 16, "kv_cache_dtype": "auto", "kv_layout": None, "tp_size": 1, "pp_size": 1, "kv_buffers": 4,
    "page_bytes": [4096] * 4, "page_memory": ["DRAM"] * 4, "sglang": "0.5.23", "sglang-pd": "0.1.0",
}  # fmt: skip


def test_equal_ones_work_together():
    assert differences(ONE, ONE, split_heads=True) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("tp_size", 2), ("pp_size", 2), ("sglang", "0.5.24"), ("sglang-pd", "0.2.0"), ("kv_layout", "x")],
)
def test_what_may_differ(field: str, value: object):
    """A field that one side does not know is not compared."""
    assert differences(ONE, {**ONE, field: value}, split_heads=True) == []


def test_every_field_that_differs_is_named_with_what_may_have_caused_it():
    other = {**ONE, "page_size": 32, "kv_cache_dtype": "fp8", "page_bytes": [8192] * 4, "sglang-pd": "0.2.0"}
    assert differences(ONE, other, split_heads=True) == [
        "page_size: prefill 16, decode 32",
        "kv_cache_dtype: prefill auto, decode fp8",
        "bytes of a page in KV buffer 0: prefill 4096, decode 8192, and 3 more",
        "sglang-pd: prefill 0.1.0, decode 0.2.0",
    ]


def test_pages_differ_rightly_where_heads_are_split_differently():
    other = {**ONE, "tp_size": 2, "page_bytes": [2048] * 4}
    assert differences(ONE, other, split_heads=True) == []
    assert differences(ONE, other, split_heads=False)


def test_it_crosses_in_a_frame():
    assert find([b"a", frame(ONE), b"later"]) == ONE
    assert find([b"a"]) is None


@given(st.binary())
def test_noise_is_none(noise: bytes):
    found = find([configuration.FRAME + noise])
    assert found is None or isinstance(found, dict)
