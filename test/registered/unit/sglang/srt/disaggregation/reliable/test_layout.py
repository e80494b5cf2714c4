"""Whether a decode's pages fit prefill's."""

import pytest

from sglang.srt.disaggregation.reliable.layout import page_differences

SAME = ("VRAM", "VRAM")


@pytest.mark.parametrize(
    ("ours", "theirs", "kinds"),
    [
        ([4096, 4096], [4096, 4096], [SAME, SAME]),
        ([4096], [8192], [("VRAM", "DRAM")]),
        ([4096, 4096], [4096], [SAME]),
        ([], [], []),
    ],
)
def test_pages_that_fit(ours: list[int], theirs: list[int], kinds: list[tuple[str, str]]):
    assert page_differences(ours, theirs, kinds) == []


def test_what_differs_is_named_once():
    assert page_differences([1, 2, 3], [1, 4, 6], [SAME] * 3) == [
        "bytes of a page in KV buffer 1: prefill 2, decode 4, and 1 more"
    ]
