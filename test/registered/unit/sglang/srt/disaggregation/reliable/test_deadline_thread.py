import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sglang.srt.disaggregation.reliable.deadlines import Deadlines, DeadlineThread, Overdue
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom

PATIENCE_S = 20.0
"""How long an event may take that ought to come at once; the machine may be busy."""

Start = Callable[..., DeadlineThread]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ended() -> "queue.Queue[EndedRoom]":
    return queue.Queue()


@pytest.fixture
def ledger(clock: Clock, ended: "queue.Queue[EndedRoom]") -> Ledger:
    ledger = Ledger(Role.PREFILL, clock=clock)
    ledger.on_end.add(ended.put)
    return ledger


@pytest.fixture
def errors() -> "queue.Queue[Exception]":
    return queue.Queue()


@pytest.fixture
def start(errors: "queue.Queue[Exception]") -> Iterator[Start]:
    threads = []

    def start(ledger: Ledger, on_overdue: Callable[[Overdue], None], seconds: float = 10.0) -> DeadlineThread:
        deadlines = Deadlines(ledger.role, dict.fromkeys(PHASES[ledger.role], seconds))
        thread = DeadlineThread(ledger, deadlines, on_overdue, errors.put)
        thread.start()
        threads.append(thread)
        return thread

    yield start
    assert all(thread.stop(PATIENCE_S) for thread in threads)


def nothing(overdue: Overdue) -> None:
    """A callback that forgets to end the room."""


def raises(overdue: Overdue) -> None:
    raise RuntimeError(f"room {overdue.room.room}")


def test_a_room_that_the_callback_leaves_is_ended_with_the_reason_of_its_phase(ledger, clock, ended, start):
    thread = start(ledger, nothing)
    ledger.start(7)
    ledger.enter(7, PrefillPhase.WAITING)
    clock.now = 10.0
    thread.wake()
    record = ended.get(timeout=PATIENCE_S)
    assert (record.room, record.phase, record.reason) == (7, PrefillPhase.WAITING, Reason.SEND_TIMEOUT)
    assert thread.errors == 0


def test_an_exception_is_counted_and_reported_and_every_room_still_ends(ledger, clock, ended, errors, start):
    thread = start(ledger, raises)
    ledger.start(1)
    ledger.start(2)
    clock.now = 10.0
    thread.wake()
    assert {ended.get(timeout=PATIENCE_S).room for _ in range(2)} == {1, 2}
    assert [str(errors.get(timeout=PATIENCE_S)) for _ in range(2)] == ["room 1", "room 2"]
    assert thread.errors == 2
    ledger.start(3)
    clock.now = 20.0
    thread.wake()
    assert ended.get(timeout=PATIENCE_S).room == 3


def test_a_report_that_fails_is_logged_and_stops_nothing(ledger, clock, ended, caplog):
    def cannot_report(error: Exception) -> None:
        raise OSError("no log")

    thread = DeadlineThread(
        ledger, Deadlines(Role.PREFILL, dict.fromkeys(PrefillPhase, 10.0)), raises, on_error=cannot_report
    )
    thread.start()
    ledger.start(7)
    clock.now = 10.0
    thread.wake()
    assert ended.get(timeout=PATIENCE_S).room == 7
    assert thread.stop(PATIENCE_S)
    assert "no log" in caplog.text
    assert "room 7" in caplog.text


def test_an_error_of_the_ledger_is_reported_and_the_thread_looks_again(
    ledger, clock, ended, errors, start, monkeypatch
):
    thread = start(ledger, nothing)
    take = ledger.take_overdue

    def fails_once(*args):
        monkeypatch.setattr(ledger, "take_overdue", take)
        raise RuntimeError("ledger")

    monkeypatch.setattr(ledger, "take_overdue", fails_once)
    ledger.start(7)
    clock.now = 10.0
    thread.wake()
    assert str(errors.get(timeout=PATIENCE_S)) == "ledger"
    clock.now = 11.0
    thread.wake()
    assert ended.get(timeout=PATIENCE_S).room == 7


def test_real_time(ended, start):
    ledger = Ledger(Role.DECODE)
    ledger.on_end.add(ended.put)
    start(ledger, nothing, seconds=0.05)
    for room in range(20):
        ledger.start(room)
        record = ended.get(timeout=PATIENCE_S)
        assert (record.room, record.reason) == (room, Reason.DP_RANK_UNRESOLVED)
        assert record.seconds >= 0.05


def test_a_room_with_an_earlier_deadline_wakes_a_thread_that_sleeps_longer(ended):
    ledger = Ledger(Role.DECODE)
    ledger.on_end.add(ended.put)
    deadlines = Deadlines(Role.DECODE, {**dict.fromkeys(DecodePhase, 1000.0), DecodePhase.FINISHING: 0.05})
    thread = DeadlineThread(ledger, deadlines, nothing, on_error=pytest.fail)
    thread.start()
    ledger.start(1)
    ledger.start(2)
    ledger.enter(2, DecodePhase.FINISHING)
    assert ended.get(timeout=PATIENCE_S).room == 2
    assert thread.stop(PATIENCE_S)
    assert ledger.phase(1) == DecodePhase.RESOLVING


def test_a_later_deadline_is_kept_after_an_earlier_one(ended):
    ledger = Ledger(Role.DECODE)
    ledger.on_end.add(ended.put)
    deadlines = Deadlines(Role.DECODE, {**dict.fromkeys(DecodePhase, 1000.0), "resolving": 0.05, "waiting": 0.2})
    thread = DeadlineThread(ledger, deadlines, nothing, on_error=pytest.fail)
    thread.start()
    ledger.start(1)
    ledger.start(2)
    ledger.enter(2, DecodePhase.WAITING)
    assert [ended.get(timeout=PATIENCE_S).room for _ in range(2)] == [1, 2]
    assert thread.stop(PATIENCE_S)
    assert thread.wakeups < 20


def test_it_sleeps_while_there_is_nothing_to_do(start):
    """Rooms that come and go wake it once at most: the first, since its deadline is the earliest."""
    ledger = Ledger(Role.DECODE)
    thread = start(ledger, nothing, seconds=1000.0)
    for room in range(1000):
        ledger.start(room)
        ledger.enter(room, DecodePhase.WAITING)
        ledger.end(room, Outcome.ABORTED, Reason.CLIENT_ABORT)
    assert thread.wakeups == 0


def test_stop_does_not_wait_for_a_deadline(start):
    ledger = Ledger(Role.DECODE)
    thread = start(ledger, nothing, seconds=1000.0)
    ledger.start(7)
    begin = time.monotonic()
    assert thread.stop(PATIENCE_S)
    assert time.monotonic() - begin < PATIENCE_S
    assert not thread.is_alive()


def test_stop_says_where_a_callback_still_runs(ledger, clock, start):
    entered, go_on = threading.Event(), threading.Event()

    def waits(overdue: Overdue) -> None:
        entered.set()
        go_on.wait(PATIENCE_S)

    thread = start(ledger, waits)
    ledger.start(7)
    clock.now = 10.0
    thread.wake()
    assert entered.wait(PATIENCE_S)
    assert not thread.stop(timeout=0.01)
    go_on.set()
    assert thread.stop(PATIENCE_S)


def test_deadlines_of_the_other_role_are_an_error(ledger):
    with pytest.raises(ValueError, match="decode"):
        DeadlineThread(ledger, Deadlines(Role.DECODE, dict.fromkeys(DecodePhase, 1.0)), nothing, on_error=pytest.fail)
