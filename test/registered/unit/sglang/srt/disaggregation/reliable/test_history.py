import pytest

from sglang.srt.disaggregation.reliable.history import History
from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom, Room


def ended(room: int, at: float) -> EndedRoom:
    return Room(Role.PREFILL, room, room, at).end(Reason.DELIVERED, at)


def test_only_the_last_records_are_kept_oldest_first():
    history = History(records=2, tombstones=9, tombstone_seconds=9)
    for room in (1, 2, 3):
        history.add(ended(room, 1.0))
    assert [record.room for record in history.records()] == [2, 3]


def test_tombstones_are_bounded_by_number():
    history = History(records=0, tombstones=2, tombstone_seconds=1000)
    for room in (1, 2, 3):
        history.add(ended(room, 1.0))
    assert [history.has_ended(room, 1.0) for room in (1, 2, 3)] == [False, True, True]
    assert len(history) == 2


def test_tombstones_are_bounded_by_age():
    history = History(records=0, tombstones=9, tombstone_seconds=10)
    history.add(ended(1, 1.0))
    history.add(ended(2, 5.0))
    assert history.has_ended(1, 11.0)
    assert not history.has_ended(1, 11.1)
    assert history.has_ended(2, 11.1)
    assert len(history) == 1


def test_a_number_that_ends_again_is_as_young_as_its_last_end():
    history = History(records=0, tombstones=9, tombstone_seconds=10)
    history.add(ended(1, 1.0))
    history.add(ended(2, 5.0))
    history.add(ended(1, 6.0))
    assert not history.has_ended(2, 15.5)
    assert history.has_ended(1, 15.5)


def test_a_number_in_use_again_is_forgotten():
    history = History(records=0, tombstones=9, tombstone_seconds=10)
    history.add(ended(1, 1.0))
    history.forget(1)
    history.forget(2)
    assert not history.has_ended(1, 1.0)


@pytest.mark.parametrize("bounds", [(-1, 1, 1.0), (1, -1, 1.0), (1, 1, -1.0)])
def test_a_negative_bound_is_an_error(bounds):
    with pytest.raises(ValueError, match="negative"):
        History(*bounds)
