"""How long a room may stay in each phase, and the thread that ends those that stay longer.

A deadline counts from the phase's start. Nothing here depends on the scheduler: a room is ended when its time is up
whether or not anything else happens in the process.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, Phase, Role
from sglang.srt.disaggregation.reliable.reasons import DEADLINE_REASON, Reason
from sglang.srt.disaggregation.reliable.room import RoomRecord

logger = logging.getLogger(__name__)

# An error of the ledger itself may come again at once: look again in a while, not in a loop.
AFTER_ERROR_S = 1.0


@dataclass(frozen=True)
class Overdue:
    """A room whose phase lasted longer than its deadline, and what it is to end with."""

    room: RoomRecord
    reason: Reason


@dataclass(frozen=True)
class Deadlines:
    """Seconds a room of ``role`` may stay in each phase.

    Raises ``ValueError`` unless every phase of the role, and nothing else, has a finite number above 0.
    """

    role: Role
    seconds: Mapping[Phase, float]

    def __post_init__(self) -> None:
        known = set(PHASES[self.role])
        if set(self.seconds) != known:
            missing, unknown = sorted(known - set(self.seconds)), sorted(set(self.seconds) - known)
            raise ValueError(f"deadlines of {self.role}: missing {missing}, unknown {unknown}")
        bad = {str(phase): value for phase, value in self.seconds.items() if not 0 < value < math.inf}
        if bad:
            raise ValueError(f"deadlines of {self.role}: not a finite number of seconds above 0: {bad}")

    def take_overdue(self, ledger: Ledger) -> list[Overdue]:
        """Rooms whose time is up, the longest overdue first; each is returned once a phase. O(1) a room."""
        taken = [
            Overdue(room, DEADLINE_REASON[self.role][phase])
            for phase, seconds in self.seconds.items()
            for room in ledger.take_overdue(phase, seconds)
        ]
        return sorted(taken, key=lambda overdue: self.due(*overdue.room.timeline[-1]))

    def next_due(self, ledger: Ledger) -> float:
        """When the next room is overdue, in seconds of the ledger's clock; infinite where none is live."""
        entered = {phase: ledger.first_pending(phase) for phase in self.seconds}
        return min((self.due(phase, at) for phase, at in entered.items() if at is not None), default=math.inf)

    def due(self, phase: Phase, entered: float) -> float:
        return entered + self.seconds[phase]


class DeadlineThread:
    """Tells ``on_overdue`` of each room whose time is up, and sees to it that the room ends.

    ``on_overdue`` ends the room and tells the peer. It must not block: it runs on this thread. A room that it leaves in
    the overdue phase, by an exception or otherwise, is ended here with the phase's reason. Exceptions go to
    ``on_error`` and are counted; they stop nothing.

    The thread sleeps until the next deadline; a room that enters a phase wakes it only where its deadline is earlier.
    """

    def __init__(
        self,
        ledger: Ledger,
        deadlines: Deadlines,
        on_overdue: Callable[[Overdue], None],
        on_error: Callable[[Exception], None],
    ):
        if deadlines.role is not ledger.role:
            raise ValueError(f"deadlines of {deadlines.role} for the ledger of {ledger.role}")
        self.errors = 0
        self.wakeups = 0
        self._ledger = ledger
        self._deadlines = deadlines
        self._on_overdue = on_overdue
        self._on_error = on_error
        self._changed = threading.Condition()
        self._wake_at = math.inf
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"pd-deadlines-{ledger.role}", daemon=True)
        ledger.on_first_in_phase.add(self._room_entered)

    def start(self) -> None:
        """Raises ``RuntimeError`` where it was started before."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop, and wait at most ``timeout`` seconds for a callback that runs; returns whether the thread is gone."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self.is_alive()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Look for overdue rooms now; for a clock that does not run by itself."""
        self._wake_no_later_than(-math.inf)

    def _room_entered(self, phase: Phase, entered: float) -> None:
        self._wake_no_later_than(self._deadlines.due(phase, entered))

    def _wake_no_later_than(self, due: float) -> None:
        with self._changed:
            if due < self._wake_at:
                self._wake_at = due
                self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            self.wakeups += 1
            try:
                for overdue in self._deadlines.take_overdue(self._ledger):
                    self._end(overdue)
                due = self._deadlines.next_due(self._ledger)
            except Exception as error:  # noqa: BLE001 (reported; without this thread no room would end by deadline)
                self._report(error)
                due = self._ledger.clock() + AFTER_ERROR_S
            # The wake-up time was forgotten before the rooms were read: one that entered since then has set it again.
            self._wake_no_later_than(due)

    def _wait(self) -> bool:
        """Sleep until it is time to look; returns whether to go on."""
        with self._changed:
            while not self._stopped and (left := self._wake_at - self._ledger.clock()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            self._wake_at = math.inf
            return not self._stopped

    def _end(self, overdue: Overdue) -> None:
        for step in (self._on_overdue, self._expire):
            try:
                step(overdue)
            except Exception as error:  # noqa: BLE001 (reported; this room and the others still have to end)
                self._report(error)

    def _expire(self, overdue: Overdue) -> None:
        room = overdue.room
        self._ledger.expire(room.room, room.generation, room.phase, overdue.reason)

    def _report(self, error: Exception) -> None:
        self.errors += 1
        try:
            self._on_error(error)
        except Exception:
            logger.exception("A deadline callback failed with %r, and reporting that failed too", error)
