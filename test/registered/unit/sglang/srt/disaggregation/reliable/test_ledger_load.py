"""The ledger under many rooms and many threads."""

import random
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom

EVENTS_A_ROOM = 10


def start(ledger: Ledger, room: int) -> None:
    ledger.start(room, rid=f"rid-{room}", peer="10.0.0.7:8998")
    ledger.enter(room, DecodePhase.BOOTSTRAPPING)
    ledger.enter(room, DecodePhase.ALLOCATING)
    ledger.enter(room, DecodePhase.WAITING)


def finish(ledger: Ledger, room: int) -> None:
    ledger.enter(room, DecodePhase.TRANSFERRING)
    ledger.progress(room, pages=8, bytes=1 << 20)
    ledger.progress(room, pages=8, bytes=1 << 20)
    ledger.progress(room, pages=8, bytes=1 << 20)
    ledger.enter(room, DecodePhase.FINISHING)
    ledger.end(room, Outcome.SUCCESS)


def churn(ledger: Ledger, rooms: range, live: int = 500) -> None:
    """Every room of ``rooms`` from start to end, with ``live`` of them at a time."""
    for room in rooms:
        start(ledger, room)
        if room - rooms.start >= live:
            finish(ledger, room - live)
    for room in rooms[-live:]:
        finish(ledger, room)


def test_100_000_rooms(capsys):
    ledger, rooms = Ledger(Role.DECODE), 100_000
    begin = time.process_time()
    churn(ledger, range(rooms))
    seconds = time.process_time() - begin
    ledger.check()
    counts = ledger.counts()
    assert counts.ended == {(Outcome.SUCCESS, DecodePhase.FINISHING, Reason.DELIVERED): rooms}
    assert counts.pages == 24 * rooms
    assert not counts.anomalies
    with capsys.disabled():
        print(
            f"\nledger: {EVENTS_A_ROOM * rooms / seconds:,.0f} events/s, {seconds / rooms * 1e6:.1f} us of CPU a room"
        )
    assert seconds / rooms < 500e-6


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def held() -> int:
    return tracemalloc.get_traced_memory()[0]


def test_memory_of_a_live_room(traced, capsys):
    ledger, rooms = Ledger(Role.DECODE), 10_000
    before = held()
    for room in range(rooms):
        start(ledger, room)
    each = (held() - before) / rooms
    with capsys.disabled():
        print(f"\nledger: {each:.0f} bytes a live room, four phases and its rid included")
    assert each < 2048


def test_memory_is_flat_once_rooms_have_ended(traced, capsys):
    ledger = Ledger(Role.DECODE, records=256, tombstones=2048)
    churn(ledger, range(5_000))
    before = held()
    churn(ledger, range(5_000, 30_000))
    grown = held() - before
    with capsys.disabled():
        print(f"\nledger: {grown:+,} bytes after 25,000 more rooms, {before:,} before")
    assert ledger.counts().started == 30_000
    assert grown < 100_000


@pytest.fixture
def many_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_many_threads_on_the_same_rooms(many_switches):
    ledger, numbers, each = Ledger(Role.DECODE, records=64, tombstones=2), range(3), 4000
    told: list[EndedRoom] = []
    got, started = Counter[int](), Counter[int]()
    errors: list[Exception] = []
    ledger.on_end.add(told.append)

    def play(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(each):
            room, event = dice.choice(numbers), dice.random()
            if event < 0.3:
                started[seed] += ledger.start(room) is not None
            elif event < 0.6:
                ledger.enter(room, dice.choice(list(DecodePhase)))
            elif event < 0.7:
                ledger.progress(room, pages=1)
            elif event < 0.8:
                got[seed] += ledger.end(room, Outcome.ABORTED, Reason.CLIENT_ABORT) is not None
            else:
                got[seed] += ledger.end(room, Outcome.FAILED, Reason.PEER_LOST) is not None
            if event < 0.02:
                ledger.counts().check()
                ledger.check()

    def play_and_report(seed: int) -> None:
        try:
            play(seed)
        except Exception as error:  # noqa: BLE001 (raised by the test below)
            errors.append(error)

    threads = [threading.Thread(target=play_and_report, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    ledger.check()
    counts = ledger.counts()
    assert counts.started == sum(started.values())
    assert sum(counts.ended.values()) == sum(got.values()) == len(told)
    assert len({record.generation for record in told}) == len(told)
    assert sum(counts.ended.values()) > 1000
