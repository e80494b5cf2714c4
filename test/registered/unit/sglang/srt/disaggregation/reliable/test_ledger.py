import logging

import pytest

from sglang.srt.disaggregation.reliable.counts import LedgerError
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import Anomaly


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(Role.PREFILL, clock=clock)


def test_a_room_from_start_to_success(ledger, clock):
    assert ledger.start(7, rid="r", peer="p") == 1
    clock.now += 1
    assert ledger.enter(7, PrefillPhase.WAITING)
    clock.now += 2
    assert ledger.identify(7, incarnation="i")
    assert ledger.enter(7, PrefillPhase.TRANSFERRING)
    assert ledger.progress(7, pages=3, bytes=30)
    assert ledger.progress(7, pages=1, bytes=10)
    clock.now += 4
    record = ledger.end(7, Outcome.SUCCESS)
    assert record is not None
    assert (record.room, record.rid, record.peer, record.incarnation) == (7, "r", "p", "i")
    assert (record.outcome, record.reason, record.phase) == (
        Outcome.SUCCESS,
        Reason.DELIVERED,
        PrefillPhase.TRANSFERRING,
    )
    assert (record.pages, record.bytes) == (4, 40)
    assert list(record.phase_seconds().values()) == [1, 2, 4]
    counts = ledger.counts()
    assert (counts.pages, counts.bytes) == (4, 40)
    assert counts.ended == {(Outcome.SUCCESS, PrefillPhase.TRANSFERRING, Reason.DELIVERED): 1}
    assert not counts.anomalies


def test_only_the_first_end_gets_the_record(ledger):
    ledger.start(7)
    assert ledger.end(7, Outcome.FAILED, Reason.NIXL_BACKEND) is not None
    assert ledger.end(7, Outcome.SUCCESS) is None
    assert ledger.counts().anomalies == {Anomaly.DUPLICATE: 1}
    assert sum(ledger.counts().ended.values()) == 1


def test_events_after_the_end_are_late_and_change_nothing(ledger):
    ledger.start(7)
    ledger.end(7, Outcome.SUCCESS)
    assert not ledger.enter(7, PrefillPhase.WAITING)
    assert not ledger.progress(7, pages=1)
    assert not ledger.identify(7, peer="p")
    counts = ledger.counts()
    assert counts.anomalies == {Anomaly.LATE: 3}
    assert counts.pages == 0
    assert sum(counts.live.values()) == 0
    assert ledger.phase(7) is None
    assert ledger.has_ended(7)


def test_events_of_a_room_never_started_are_unknown(ledger):
    assert not ledger.enter(7, PrefillPhase.WAITING)
    assert ledger.end(7, Outcome.SUCCESS) is None
    assert ledger.counts().anomalies == {Anomaly.UNKNOWN: 2}
    assert not ledger.has_ended(7)


def test_a_room_whose_tombstone_is_gone_is_unknown(clock):
    ledger = Ledger(Role.PREFILL, clock=clock, tombstone_seconds=10)
    generation = ledger.start(7)
    ledger.end(7, Outcome.SUCCESS)
    clock.now += 11
    ledger.enter(7, PrefillPhase.WAITING)
    assert ledger.counts().anomalies == {Anomaly.UNKNOWN: 1}
    # With its generation it is known all the same: only a room that started has one.
    ledger.enter(7, PrefillPhase.WAITING, generation=generation)
    assert ledger.counts().anomalies == {Anomaly.UNKNOWN: 1, Anomaly.LATE: 1}


def test_a_number_that_is_live_cannot_start_again(ledger):
    ledger.start(7, rid="first")
    assert ledger.start(7, rid="second") is None
    assert [room.rid for room in ledger.live_rooms()] == ["first"]
    assert ledger.counts().anomalies == {Anomaly.DUPLICATE: 1}
    assert ledger.counts().started == 1


def test_a_number_started_again_after_its_end_is_a_new_room(ledger):
    first = ledger.start(7)
    ledger.enter(7, PrefillPhase.TRANSFERRING)
    ledger.progress(7, pages=5)
    ledger.end(7, Outcome.FAILED, Reason.PEER_LOST)
    second = ledger.start(7)
    assert second is not None
    assert second > first
    assert ledger.phase(7) == PrefillPhase.BOOTSTRAPPING
    assert not ledger.has_ended(7)
    assert next(iter(ledger.live_rooms())).pages == 0


def test_an_event_of_an_earlier_generation_cannot_touch_the_new_room(ledger):
    first = ledger.start(7)
    ledger.end(7, Outcome.SUCCESS)
    second = ledger.start(7)
    assert not ledger.enter(7, PrefillPhase.WAITING, generation=first)
    assert not ledger.progress(7, pages=1, generation=first)
    assert not ledger.identify(7, rid="x", generation=first)
    assert ledger.end(7, Outcome.FAILED, Reason.NIXL_BACKEND, generation=first) is None
    assert ledger.counts().anomalies == {Anomaly.LATE: 3, Anomaly.DUPLICATE: 1}
    (room,) = ledger.live_rooms()
    assert (room.generation, room.phase, room.pages, room.rid) == (second, PrefillPhase.BOOTSTRAPPING, 0, None)
    assert ledger.end(7, Outcome.SUCCESS, generation=second) is not None


def test_the_reason_of_the_last_end_is_remembered_until_the_number_starts_again(ledger):
    assert ledger.end_reason(7) is None
    ledger.start(7)
    assert ledger.end_reason(7) is None
    ledger.end(7, Outcome.ABORTED, Reason.CLIENT_ABORT)
    ledger.end(7, Outcome.FAILED, Reason.PEER_LOST)
    assert ledger.end_reason(7) is Reason.CLIENT_ABORT
    ledger.start(7)
    assert ledger.end_reason(7) is None


def test_expire_ends_only_the_generation_and_phase_it_names_and_counts_nothing_else(ledger):
    first = ledger.start(7)
    assert ledger.expire(7, first, PrefillPhase.WAITING, Reason.SEND_TIMEOUT) is None
    assert ledger.expire(7, first + 1, PrefillPhase.BOOTSTRAPPING, Reason.METADATA_TIMEOUT) is None
    record = ledger.expire(7, first, PrefillPhase.BOOTSTRAPPING, Reason.METADATA_TIMEOUT)
    assert record is not None
    assert record.reason is Reason.METADATA_TIMEOUT
    assert ledger.expire(7, first, PrefillPhase.BOOTSTRAPPING, Reason.METADATA_TIMEOUT) is None
    assert not ledger.counts().anomalies


@pytest.mark.parametrize(
    "mistake",
    [
        lambda ledger: ledger.end(7, Outcome.FAILED),
        lambda ledger: ledger.end(7, Outcome.SUCCESS, Reason.PEER_LOST),
        lambda ledger: ledger.progress(7, pages=-1),
        lambda ledger: ledger.progress(7, bytes=-1),
        lambda ledger: ledger.enter(7, DecodePhase.FINISHING),
    ],
)
def test_a_mistake_in_the_calling_code_raises_and_changes_nothing(ledger, mistake):
    ledger.start(7)
    before = ledger.counts()
    with pytest.raises(ValueError, match=r"."):
        mistake(ledger)
    assert ledger.counts() == before
    ledger.check()


def test_the_oldest_in_a_phase_is_the_one_that_entered_it_first(ledger, clock):
    assert ledger.oldest_age(PrefillPhase.WAITING) is None
    ledger.start(1)
    clock.now += 1
    ledger.start(2)
    ledger.enter(2, PrefillPhase.WAITING)
    clock.now += 1
    ledger.enter(1, PrefillPhase.WAITING)
    clock.now += 5
    assert ledger.oldest_age(PrefillPhase.WAITING) == 6
    assert ledger.counts().oldest_seconds[PrefillPhase.WAITING] == 6
    ledger.end(2, Outcome.SUCCESS)
    assert ledger.oldest_age(PrefillPhase.WAITING) == 5


def test_live_rooms_are_listed_oldest_first_and_in_full_however_many(ledger):
    for room in range(1000):
        ledger.start(room)
    ledger.end(0, Outcome.SUCCESS)
    ledger.start(0)
    assert [room.room for room in ledger.live_rooms()] == [*range(1, 1000), 0]


def test_a_room_that_ends_while_the_list_is_read_is_left_out(ledger):
    for room in range(600):
        ledger.start(room)
    rooms = ledger.live_rooms()
    assert next(rooms).room == 0
    ledger.end(599, Outcome.SUCCESS)
    ledger.start(599)
    assert [room.room for room in rooms] == list(range(1, 599))


def test_listeners_are_told_once_outside_the_lock_and_one_that_fails_stops_nothing(ledger, caplog):
    seen = []

    def fails(record):
        raise RuntimeError("listener")

    ledger.on_end.add(fails)
    # A listener that reads the ledger would hang if the lock were held.
    ledger.on_end.add(lambda record: seen.append((record.room, ledger.counts().started)))
    ledger.start(7)
    with caplog.at_level(logging.ERROR):
        ledger.end(7, Outcome.SUCCESS)
    ledger.end(7, Outcome.SUCCESS)
    assert seen == [(7, 1)]
    assert ledger.on_end.errors == 1
    assert "listener" in caplog.text


def test_only_the_first_room_of_a_phase_is_told(ledger, clock):
    told = []
    ledger.on_first_in_phase.add(lambda phase, entered: told.append((phase, entered)))
    ledger.start(1)
    clock.now += 1
    ledger.start(2)
    assert told == [(PrefillPhase.BOOTSTRAPPING, 1000.0)]
    ledger.enter(2, PrefillPhase.WAITING)
    ledger.enter(1, PrefillPhase.WAITING)
    ledger.enter(1, PrefillPhase.TRANSFERRING)
    assert told[1:] == [(PrefillPhase.WAITING, 1001.0), (PrefillPhase.TRANSFERRING, 1001.0)]


def test_check_notices_a_room_that_got_lost(ledger):
    ledger.start(7)
    ledger.check()
    del ledger._books.live[7]
    with pytest.raises(LedgerError, match="0 rooms are live"):
        ledger.check()
    ledger.start(8)
    ledger._books.tally.started += 1
    with pytest.raises(LedgerError, match="3 rooms started"):
        ledger.check()
