"""What peers of ours add to their messages, and that nobody else is misread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable import incarnation, stamps
from sglang.srt.disaggregation.reliable.stamps import STOCK, Stamp, take

ONE = "0a1b2c3d@1764534196"
incarnations = st.none() | st.from_regex(r"[0-9a-f]{8}@[0-9]{1,12}", fullmatch=True)
numbers = st.integers(0, 10**18)


@given(st.builds(Stamp, numbers, incarnations, incarnations, st.none() | numbers, numbers))
def test_what_is_written_is_read(stamp: Stamp):
    assert take([b"a", b"b", stamp.frame()]) == (stamp, [b"a", b"b"])


@given(st.lists(st.binary(max_size=40), min_size=1).filter(lambda frames: not frames[-1].startswith(stamps.PREFIX)))
def test_a_stock_message_is_left_as_it_is(frames: list[bytes]):
    assert take(frames) == (STOCK, frames)


@given(st.binary(max_size=80))
def test_noise_is_no_error(noise: bytes):
    stamp, frames = take([b"a", stamps.PREFIX + noise])
    assert frames == [b"a"]
    assert stamp.sender is None or incarnation.is_one(stamp.sender)


def test_a_stamp_alone_is_a_message():
    frames = [stamps.stamp(None)]
    assert take(frames) == (STOCK, frames)


@pytest.mark.parametrize(("to", "another"), [(None, False), (incarnation.mine(), False), (ONE, True)])
def test_whom_it_is_for(to: str | None, another: bool):
    assert take([b"a", stamps.stamp(to)])[0].is_for_another is another


def test_a_later_version_may_say_more():
    stamp, _ = take([b"a", Stamp(3, ONE, None, 5, 0).frame() + b" more"])
    assert (stamp.protocol, stamp.sender, stamp.serial) == (3, ONE, 5)
