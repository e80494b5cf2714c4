"""The life of one decode's transfers: post what is queued, watch what is in flight, end each room once.

Where the connection breaks, it is made anew and everything that was in flight is written again: the same bytes to the
same pages. Where the decode stops, its writes count as in flight until NIXL reports them over; nothing new is posted
meanwhile, so that what is queued is not lost if the decode goes on in time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from sglang.srt.disaggregation.reliable.batching import Limits, how_many
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.handles import SETTLE_S
from sglang.srt.disaggregation.reliable.lanes import IDLE_S, Inbox
from sglang.srt.disaggregation.reliable.links import Links
from sglang.srt.disaggregation.reliable.nixl_errors import connection_lost, disconnected, failure_of, reason_of
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.status_lanes import Load
from sglang.srt.disaggregation.reliable.writes import Send, Write, post

logger = logging.getLogger(__name__)

# Pause between two looks at what is in flight, as a part of the time since something last moved, within bounds in
# seconds: who looks without a pause takes a core from the threads that copy.
PAUSE, PAUSE_S = 0.1, (0.0001, 0.002)
# How often rooms that ended are looked for among those that cannot be posted now, in seconds.
SWEEP_S = 0.05
# The first write over a connection that was made anew gets this long, in seconds; then it is made anew again.
FIRST_S = 1.0
# Pause before a connection is made anew, first and longest, in seconds: long enough to hear that its process is gone.
RETRY_S = (0.05, 0.2)
# A stopped decode's connection is closed after so many times the deadline: until then its writes hold its pages.
STOPPED_FOR_GOOD = 10


class StuckConnectionError(RuntimeError):
    """A connection that was just made anew carries nothing: the end of the old one may have taken it along."""

    reason = Reason.PEER_DISCONNECTED


class Rooms(Protocol):
    """What a pump asks and tells of rooms."""

    def is_live(self, send: Send) -> bool:
        """Whether the chunk's room still wants it."""

    def begin(self, send: Send) -> None:
        """The chunk is about to be written."""

    def end(self, send: Send) -> None:
        """The chunk's write is over, for better or worse; it may be written again."""

    def written(self, sends: list[Send]) -> None:
        """The chunks arrived."""

    def fail(self, send: Send, reason: Failure) -> None:
        """The chunk's room is lost."""

    def drop(self, send: Send) -> None:
        """The chunk will not be written: its room has ended."""


@dataclass(frozen=True)
class Patience:
    """Seconds: ``write_s`` for a write from its posting, and for a chunk from its queuing where decode has stopped;
    ``reconnect_s`` for a connection from its first error."""

    write_s: float
    reconnect_s: float

    @property
    def first_s(self) -> float:
        """For the first write over a connection that was made anew."""
        return min(FIRST_S, self.write_s / 2)


class Pump:
    """``manager`` is prefill's ``ReliableKVManager``. Everything runs on the lane's thread."""

    def __init__(self, manager: Any, links: Links, rooms: Rooms, limits: Limits, patience: Patience) -> None:
        self._manager = manager
        self._links = links
        self._rooms = rooms
        self._limits = limits
        self._patience = patience
        self._queued: deque[Send] = deque()
        self._flying: list[Write] = []
        self._stalled: list[Write] = []
        # Since when no write has arrived because of the connection, and the first error; when to try it again.
        self._broken: tuple[float, BaseException] | None = None
        self._retry_at = self._retry_pause = 0.0
        self._quiet_since, self._swept = time.monotonic(), 0.0
        self._arrived: float | None = None
        self._looked = self._quiet_since

    def run(self, inbox: Inbox[Send], closed: Callable[[], bool]) -> None:
        """Work until nothing has come for a while."""
        while True:
            busy = bool(self._queued or self._flying or self._stalled)
            came = inbox.take(self._pause() if busy else 0.0 if inbox.stopped else IDLE_S)
            if not busy and not came and closed():
                return
            self.queue(came)
            self.step(time.monotonic())

    def load(self) -> Load:
        """What it holds; any thread may ask."""
        # Each is copied in one step of the interpreter, while the lane's thread goes on.
        return Load(list(self._queued), list(self._flying), list(self._stalled), self._arrived, self._looked)

    def queue(self, sends: Iterable[Send]) -> None:
        self._queued.extend(sends)

    def step(self, now: float) -> None:
        """One round at the time ``now``, in monotonic seconds."""
        self._looked = now
        moved = self._watch(now)
        if self._stalled or now < self._retry_at:
            self._sweep(now)
        else:
            moved |= self._post(now) > 0
            # What completed within the post need not wait for the next look.
            moved |= self._watch(now)
        if moved:
            self._quiet_since = time.monotonic()

    def _pause(self) -> float:
        now = time.monotonic()
        if not self._flying:
            return SWEEP_S if self._stalled else max(0.0, min(SWEEP_S, self._retry_at - now))
        shortest, longest = PAUSE_S
        return min(max(PAUSE * (now - self._quiet_since), shortest), longest)

    # Posting.

    def _post(self, now: float) -> int:
        posted, flying = 0, len(self._flying)
        in_flight = sum(write.bytes for write in self._flying)
        while self._queued and now >= self._retry_at:
            count = how_many(self._queued, flying + posted, in_flight, self._limits)
            if count == 0:
                break
            sends = self._live([self._queued.popleft() for _ in range(count)])
            if sends:
                write = self._post_one(sends, now)
                in_flight += write.bytes
                posted += 1
                if write.error is not None:
                    # What becomes of it decides about the next.
                    break
        return posted

    def _live(self, sends: list[Send]) -> list[Send]:
        live = []
        for send in sends:
            if self._rooms.is_live(send):
                live.append(send)
            else:
                self._rooms.drop(send)
        return live

    def _post_one(self, sends: list[Send], now: float) -> Write:
        write = Write(sends, posted=now)
        for send in sends:
            self._rooms.begin(send)
        try:
            agents = {info.agent_name for send in sends for info in send.targets}
            write.epochs = {agent: self._links.epoch(agent) for agent in agents}
            post(self._manager, write)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the outcome of this write alone)
            write.fail(error, now)
        self._flying.append(write)
        return write

    # Watching.

    def _watch(self, now: float) -> bool:
        """Deal with every write that is over; returns whether there was one."""
        self._watch_stalled(now)
        state_of, done = self._manager.agent.check_xfer_state, []
        for write in list(self._flying):
            if write not in self._flying:
                continue
            write.look(state_of, now)
            if write.error is not None:
                settled = write.lost or not write.running or now - write.error_at > SETTLE_S
                if settled or connection_lost(write.error):
                    self._broke(write, write.error, now)
                    done.append(write)
            elif not write.running:
                self._flying.remove(write)
                self._broken, self._retry_pause = None, 0.0
                self._arrived = now
                self._links.wrote(write.epochs)
                done.append(write)
            elif now - write.posted > self._patience.first_s and self._links.is_healing(write.epochs):
                stuck = StuckConnectionError("nothing was written over a new connection in time")
                write.fail(stuck, now)
                self._broke(write, stuck, now)
                done.append(write)
            elif now - write.posted > self._patience.write_s:
                self._flying.remove(write)
                self._stall(write)
        self._conclude(write for write in done if write.error is None)
        return bool(done)

    def _conclude(self, writes: Iterable[Write]) -> None:
        sends = [send for write in writes for send in write.sends]
        for send in sends:
            self._rooms.end(send)
        if sends:
            self._rooms.written(sends)

    def _stall(self, write: Write) -> None:
        text = f"{len(write.running)} writes to decode were not done after {self._patience.write_s:g} s: it has stopped"
        for send in write.sends:
            self._rooms.fail(send, failure(Reason.TRANSFER_TIMEOUT, f"{text} or is unreachable"))
        self._stalled.append(write)

    def _watch_stalled(self, now: float) -> None:
        for write in list(self._stalled):
            write.look(self._manager.agent.check_xfer_state, now)
            too_long = now - write.posted > STOPPED_FOR_GOOD * self._patience.write_s
            if write.running and write.error is None and not too_long:
                continue
            if write.running:
                # Nothing else proves that it is over.
                self._close(write, [write])
            self._stalled.remove(write)
            for send in write.sends:
                self._rooms.end(send)

    def _sweep(self, now: float) -> None:
        """End what cannot be posted now and has waited too long; drop what ended meanwhile."""
        if now - self._swept < SWEEP_S:
            return
        self._swept, waiting = now, self._live(list(self._queued))
        self._queued.clear()
        for send in waiting:
            if self._stalled and now - send.queued > self._patience.write_s:
                text = "earlier writes to this decode are not done: it has stopped or is unreachable"
                self._rooms.fail(send, failure(Reason.TRANSFER_TIMEOUT, text))
                self._rooms.drop(send)
            else:
                self._queued.append(send)

    # Errors.

    def _broke(self, write: Write, error: BaseException, now: float) -> None:
        """A write failed: write its chunks again where that can help, else end their rooms."""
        lost = [write]
        if connection_lost(error) or write.running:
            # In the order in which they were posted: a room's chunks stay in theirs.
            lost = [each for each in self._flying if each is write or each.epochs.items() & write.epochs.items()]
            self._close(write, lost)
            self._retry_pause = min(2 * self._retry_pause or RETRY_S[0], RETRY_S[1])
            self._retry_at = now + self._retry_pause
        self._flying = [each for each in self._flying if each not in lost]
        if disconnected(error) or self._broken is not None:
            self._requeue(send for each in lost for send in each.sends)
            since, first = self._broken = self._broken or (now, error)
            if now - since > self._patience.reconnect_s:
                self._give_up_all(write, first)
        else:
            self._requeue(
                send for each in lost for send in each.sends if not self._is_hopeless(send, each is write, error)
            )

    def _is_hopeless(self, send: Send, failed: bool, error: BaseException) -> bool:
        """Whether a chunk is not to be written again: its room is ended then. ``failed``: the error came for its write,
        which may have been that of another chunk in it. The connection may have been the cause, once."""
        if not failed:
            return False
        send.errors += send.alone
        send.alone = True
        if send.errors == 0 or (send.errors == 1 and connection_lost(error)):
            return False
        self._rooms.fail(send, failure_of(error))
        self._rooms.end(send)
        return True

    def _close(self, write: Write, lost: list[Write]) -> None:
        """Close the connections of a write; the ``lost`` ones, which used them, are over then."""
        for each in lost:
            # First: a connection that a handle still refers to is not closed.
            self._links.abandon(each.running)
            each.running = []
        for agent, epoch in write.epochs.items():
            self._links.close(agent, epoch)

    def _give_up_all(self, write: Write, error: BaseException) -> None:
        """The connection stays broken: end every room that waits for it. The next one tries again."""
        self._broken = None
        self._links.gave_up(write.epochs)
        text = f"{error}; connecting anew did not help within {self._patience.reconnect_s:g} s"
        for send in self._queued:
            self._rooms.fail(send, failure(reason_of(error), text))
            self._rooms.drop(send)
        self._queued.clear()

    def _requeue(self, sends: Iterable[Send]) -> None:
        sends = list(sends)
        for send in sends:
            self._rooms.end(send)
        self._queued.extendleft(reversed(sends))
