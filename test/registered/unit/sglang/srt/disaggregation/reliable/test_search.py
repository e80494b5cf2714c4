import pytest

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.search import RoomFilter, find_rooms


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(Role.DECODE)
    for room in range(1, 7):
        ledger.start(room, rid=f"r{room}", peer="a" if room % 2 else "b")
    ledger.enter(2, DecodePhase.WAITING)
    ledger.end(4, Outcome.FAILED, Reason.PEER_LOST)
    ledger.end(5, Outcome.FAILED, Reason.PEER_LOST)
    ledger.end(6, Outcome.SUCCESS)
    return ledger


@pytest.mark.parametrize(
    ("wanted", "rooms"),
    [
        (RoomFilter(), [1, 2, 3, 6, 5, 4]),
        (RoomFilter(room=4), [4]),
        (RoomFilter(rid="r2"), [2]),
        (RoomFilter(peer="a"), [1, 3, 5]),
        (RoomFilter(phase=DecodePhase.WAITING), [2]),
        (RoomFilter(reason=Reason.PEER_LOST), [5, 4]),
        (RoomFilter(peer="b", reason=Reason.PEER_LOST), [4]),
        (RoomFilter(room=9), []),
    ],
)
def test_live_rooms_come_first_then_the_last_ended(ledger, wanted, rooms):
    assert [record.room for record in find_rooms(ledger, wanted)] == rooms


def test_no_more_than_the_limit(ledger):
    assert [record.room for record in find_rooms(ledger, RoomFilter(), limit=4)] == [1, 2, 3, 6]


def test_every_life_of_a_number_is_found(ledger):
    generation = ledger.start(4)
    assert [record.generation for record in find_rooms(ledger, RoomFilter(room=4))] == [generation, 4]


def test_a_room_that_ends_between_the_two_looks_is_listed_once(ledger, monkeypatch):
    ended_rooms = ledger.ended_rooms

    def end_one_first():
        ledger.end(1, Outcome.SUCCESS)
        return ended_rooms()

    live = ledger.live_rooms()
    seen = [next(live)]
    monkeypatch.setattr(ledger, "live_rooms", lambda: iter([*seen, *live]))
    monkeypatch.setattr(ledger, "ended_rooms", end_one_first)
    assert [record.room for record in find_rooms(ledger, RoomFilter(peer="a"))] == [1, 3, 5]
