"""A pump over a NIXL that a test controls: what is posted, in what order, and how every chunk ends once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable import pump as pump_module
from sglang.srt.disaggregation.reliable.batching import Limits
from sglang.srt.disaggregation.reliable.failure import Failure
from sglang.srt.disaggregation.reliable.pump import RETRY_S, STOPPED_FOR_GOOD, Patience, Pump
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.writes import Send, Write

PATIENCE = Patience(write_s=10.0, reconnect_s=3.0)
LIMITS = Limits(in_flight=8, batch=4)


class nixlRemoteDisconnectError(Exception):
    pass


class nixlInvalidParamError(Exception):
    pass


@dataclass(eq=False)
class Handle:
    """A posted write: ``state`` is what NIXL says of it, or raises."""

    rooms: list[int]
    state: str | Exception = "PROC"
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass
class Nixl:
    """Everything posted, oldest first. ``refuse``: the error that posting these rooms raises, None if it does not."""

    posted: list[Handle] = field(default_factory=list)
    refuse: Callable[[list[int]], Exception | None] = lambda rooms: None

    def post(self, manager: Any, write: Write) -> None:
        rooms = [send.room for send in write.sends]
        error = self.refuse(rooms)
        if error is not None:
            raise error
        handle = Handle(rooms)
        self.posted.append(handle)
        write.running.append(handle)

    def check_xfer_state(self, handle: Handle) -> str:
        if isinstance(handle.state, Exception):
            raise handle.state
        return handle.state


class Links:
    """One connection per peer; ``closed`` counts how often it was closed."""

    def __init__(self) -> None:
        self.closed: Counter[str] = Counter()
        self.results: list[str] = []

    def epoch(self, agent: str) -> int:
        return self.closed[agent]

    def close(self, agent: str, epoch: int) -> None:
        if epoch == self.closed[agent]:
            self.closed[agent] += 1

    def is_healing(self, agents: Any) -> bool:
        return self.closed["decode"] > 0 and "wrote" not in self.results

    def wrote(self, agents: Any) -> None:
        self.results.append("wrote")

    def gave_up(self, agents: Any) -> None:
        self.results.append("gave up")

    def abandon(self, handles: list[Handle]) -> None:
        for handle in handles:
            handle.release()


class Rooms:
    """Notes what it is told. ``ended`` are rooms that nobody wants any more."""

    def __init__(self) -> None:
        self.ended: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.over: Counter[int] = Counter()
        self.done: list[int] = []
        self.failed: dict[int, Reason] = {}
        self.dropped: list[int] = []

    def is_live(self, send: Send) -> bool:
        return send.room not in self.ended and send.room not in self.failed

    def begin(self, send: Send) -> None:
        self.begun[send.room] += 1

    def end(self, send: Send) -> None:
        self.over[send.room] += 1

    def written(self, sends: list[Send]) -> None:
        self.done.extend(send.room for send in sends)

    def fail(self, send: Send, reason: Failure) -> None:
        if self.is_live(send):
            self.failed[send.room] = reason.reason

    def drop(self, send: Send) -> None:
        self.dropped.append(send.room)


def send(room: int, size: int = 1, queued: float = 0.0) -> Send:
    chunk = SimpleNamespace(room=room, is_last_chunk=True)
    target = SimpleNamespace(agent_name="decode")
    return Send(chunk, {}, (target,), bytes=size, alone=False, queued=queued)


class Bench:
    """A pump with everything around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nixl, self.links, self.rooms = Nixl(), Links(), Rooms()
        monkeypatch.setattr(pump_module, "post", lambda manager, write: self.nixl.post(manager, write))
        manager = SimpleNamespace(agent=self.nixl)
        self.pump = Pump(manager, self.links, self.rooms, LIMITS, PATIENCE)  # type: ignore[arg-type]
        self.now = 0.0

    def queue(self, *sends: Send) -> None:
        self.pump.queue(sends)

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.pump.step(self.now)

    def finish(self, *handles: Handle) -> None:
        for handle in handles or self.nixl.posted:
            handle.state = "DONE"
        self.step()

    @property
    def in_flight(self) -> list[list[int]]:
        return [handle.rooms for handle in self.nixl.posted if handle.state == "PROC"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_small_chunks_share_writes_up_to_the_limits(bench: Bench):
    bench.queue(*(send(room) for room in range(10)))
    bench.step()
    assert bench.in_flight == [[0, 1, 2, 3], [4, 5, 6, 7]]
    bench.finish(bench.nixl.posted[0])
    assert bench.rooms.done == [0, 1, 2, 3]
    assert bench.in_flight == [[4, 5, 6, 7], [8, 9]]
    bench.finish()
    assert bench.rooms.done == list(range(10))
    assert bench.rooms.begun == bench.rooms.over == Counter(range(10))


def test_large_chunks_go_alone_two_at_a_time(bench: Bench):
    bench.queue(send(1, 100), send(2, 100), send(3, 100))
    bench.step()
    assert bench.in_flight == [[1], [2]]
    bench.finish(bench.nixl.posted[0])
    assert bench.in_flight == [[2], [3]]


def test_what_was_in_flight_over_a_severed_connection_is_written_again_in_order(bench: Bench):
    bench.queue(*(send(room) for room in range(10)))
    bench.step()
    bench.nixl.posted[1].state = nixlRemoteDisconnectError("severed")
    bench.step()
    assert bench.links.closed == {"decode": 1}
    bench.step(RETRY_S[0])
    lost = bench.nixl.posted[:2]
    assert all(handle.released for handle in lost)
    again = bench.nixl.posted[2:]
    assert [room for handle in again for room in handle.rooms] == list(range(8))
    bench.finish(*again)
    bench.finish()
    assert sorted(bench.rooms.done) == list(range(10))
    assert not bench.rooms.failed
    assert bench.rooms.begun == bench.rooms.over


def test_a_write_of_the_old_connection_does_not_close_the_new_one(bench: Bench):
    bench.queue(send(1, 100))
    bench.step()
    bench.links.closed["decode"] += 1
    bench.nixl.posted[0].state = nixlRemoteDisconnectError("severed")
    bench.step()
    assert bench.links.closed == {"decode": 1}
    bench.step(RETRY_S[0])
    bench.finish(bench.nixl.posted[1])
    assert bench.rooms.done == [1]


def test_a_connection_that_stays_broken_ends_its_rooms_in_time(bench: Bench):
    bench.nixl.refuse = lambda rooms: nixlRemoteDisconnectError("refused")
    bench.queue(*(send(room) for room in range(6)))
    for _ in range(50):
        bench.step(0.1)
        if bench.rooms.failed:
            break
    assert bench.now < PATIENCE.reconnect_s + 1
    assert bench.rooms.failed == dict.fromkeys(range(6), Reason.PEER_DISCONNECTED)
    assert bench.links.results == ["gave up"]
    assert bench.rooms.begun == bench.rooms.over
    # A later room tries again, no longer than the first.
    bench.queue(send(7))
    since = bench.now
    while 7 not in bench.rooms.failed:
        bench.step(0.1)
    assert bench.now - since < PATIENCE.reconnect_s + 1
    bench.nixl.refuse = lambda rooms: None
    bench.queue(send(8))
    bench.step(1.0)
    bench.finish()
    assert bench.links.results[-1] == "wrote"
    assert bench.rooms.done == [8]


def test_a_new_connection_that_carries_nothing_is_made_anew(bench: Bench):
    bench.queue(send(1))
    bench.step()
    bench.nixl.posted[0].state = nixlRemoteDisconnectError("severed")
    bench.step()
    bench.step(RETRY_S[0])
    assert len(bench.nixl.posted) == 2
    bench.step(PATIENCE.first_s + 0.1)
    assert bench.links.closed == {"decode": 2}
    bench.step(RETRY_S[1])
    bench.finish(bench.nixl.posted[2])
    assert bench.rooms.done == [1]


def test_a_chunk_that_nixl_refuses_ends_its_own_room_only(bench: Bench):
    bench.nixl.refuse = lambda rooms: nixlInvalidParamError("no such page") if 2 in rooms else None
    bench.queue(*(send(room) for room in range(4)))
    for _ in range(4):
        bench.step()
    bench.finish()
    assert bench.rooms.failed == {2: Reason.NIXL_INVALID}
    assert sorted(bench.rooms.done) == [0, 1, 3]
    assert not bench.links.closed
    assert bench.rooms.begun == bench.rooms.over


def test_err_is_taken_for_a_broken_connection(bench: Bench):
    bench.queue(send(1))
    bench.step()
    bench.nixl.posted[0].state = "ERR"
    bench.step()
    bench.step(RETRY_S[0])
    assert bench.links.closed == {"decode": 1}
    bench.finish(bench.nixl.posted[1])
    assert bench.rooms.done == [1]


def test_a_stopped_decode(bench: Bench):
    """Its writes keep counting until they are over, what is queued waits, and goes on with it."""
    bench.queue(send(1, 100), send(2, 100), send(3, 100, queued=0.2), send(4, 100, queued=5.0))
    bench.step()
    bench.step(PATIENCE.write_s + 0.1)
    assert bench.rooms.failed == dict.fromkeys((1, 2), Reason.TRANSFER_TIMEOUT)
    assert bench.rooms.over[1] == 0
    assert len(bench.nixl.posted) == 2
    bench.step(0.2)
    assert bench.rooms.failed.keys() == {1, 2, 3}
    assert bench.rooms.dropped == [3]
    bench.finish()
    assert bench.rooms.over[1] == 1
    assert bench.in_flight == [[4]]


def test_a_decode_that_stopped_for_good_is_disconnected(bench: Bench):
    bench.queue(send(1, 100))
    bench.step()
    bench.step(PATIENCE.write_s + 0.1)
    bench.step(PATIENCE.write_s * STOPPED_FOR_GOOD)
    assert bench.links.closed == {"decode": 1}
    assert bench.nixl.posted[0].released
    assert bench.rooms.begun == bench.rooms.over == Counter([1])


def test_a_room_that_ended_is_not_written(bench: Bench):
    bench.rooms.ended.add(2)
    bench.queue(send(1), send(2), send(3))
    bench.step()
    assert bench.in_flight == [[1, 3]]
    assert bench.rooms.dropped == [2]


def test_a_room_that_ended_behind_a_stopped_decode_is_dropped_at_once(bench: Bench):
    bench.queue(send(1, 100), send(2, 100))
    bench.pump.queue([])
    bench.step()
    bench.queue(send(3, queued=PATIENCE.write_s))
    bench.step(PATIENCE.write_s + 0.1)
    bench.rooms.ended.add(3)
    bench.step(0.1)
    assert 3 in bench.rooms.dropped


STATES = st.sampled_from(["PROC", "DONE", "DONE", "ERR", nixlRemoteDisconnectError("x"), nixlInvalidParamError("x")])


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10), min_size=1, max_size=12),
    fates=st.lists(st.lists(STATES, max_size=4), max_size=40),
    ends=st.sets(st.integers(0, 11)),
)
def test_whatever_happens_every_chunk_ends_once_and_is_not_counted_afterwards(
    sizes: list[int], fates: list[list[str | Exception]], ends: set[int]
):
    with pytest.MonkeyPatch.context() as patch:
        bench = Bench(patch)
        bench.queue(*(send(room, size) for room, size in enumerate(sizes)))
        bench.step()
        for number, fate in enumerate(fates):
            for handle, state in zip([h for h in bench.nixl.posted if h.state == "PROC"], fate, strict=False):
                handle.state = state
            if number in ends:
                bench.rooms.ended.add(number)
            bench.step(0.7)
        for _ in range(60):
            for handle in bench.nixl.posted:
                if handle.state == "PROC":
                    handle.state = "DONE"
            bench.step(0.2)
        rooms = bench.rooms
        assert rooms.begun == rooms.over
        assert max(Counter(rooms.done).values(), default=1) == 1
        for room in range(len(sizes)):
            assert room in rooms.done or room in rooms.failed or room in rooms.ended
            assert not (room in rooms.done and room in rooms.failed)
