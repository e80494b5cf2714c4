"""What prefill remembers of rooms that ended before both halves were there."""

from sglang.srt.disaggregation.reliable.tombstones import Tombstones


def test_late_metadata_is_answered_once_per_agent():
    stones = Tombstones(keep_s=10)
    stones.bury(1, "aborted", now_s=0.0, told={"a": None})
    assert stones.owed(1, "a", 1.0) is None
    assert stones.owed(1, "b", 1.0) == "aborted"
    assert stones.owed(1, "b", 2.0) is None
    assert stones.owed(2, "b", 2.0) is None


def test_metadata_that_comes_again_is_answered_again():
    stones = Tombstones(keep_s=10)
    stones.bury(1, "aborted", now_s=0.0, told={"a": 5})
    assert stones.owed(1, "a", 1.0, serial=5) == "aborted"
    assert stones.owed(1, "a", 2.0, serial=5) == "aborted"
    # Another serial is another room of that number.
    assert stones.owed(1, "a", 3.0, serial=6) is None
    assert stones.owed(1, "b", 1.0, serial=5) == "aborted"
    assert stones.owed(1, "b", 1.0, serial=5) == "aborted"


def test_a_room_that_is_opened_again_is_a_new_room():
    stones = Tombstones(keep_s=10)
    stones.bury(1, "aborted", now_s=0.0)
    assert stones.dig_up(1, 1.0) == "aborted"
    assert stones.dig_up(1, 1.0) is None
    assert stones.owed(1, "a", 1.0) is None


def test_nothing_is_kept_for_ever():
    stones = Tombstones(keep_s=10, limit=3)
    for room in range(5):
        stones.bury(room, "aborted", now_s=float(room))
    assert len(stones) == 3
    assert stones.owed(0, "a", 5.0) is None
    assert stones.owed(4, "a", 14.5) is None
    assert stones.dig_up(3, 13.5) is None
    stones.bury(9, "aborted", now_s=30.0)
    assert len(stones) == 1
