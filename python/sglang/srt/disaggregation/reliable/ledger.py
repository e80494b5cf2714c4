"""The ledger: every room of one role in this process, and the only source for what is logged, counted and shown of it.

    ledger = Ledger(Role.PREFILL)
    generation = ledger.start(room, rid=...)          # None: the number is live already, refuse the request
    ledger.enter(room, PrefillPhase.WAITING)          # phases only go forward, and may be left out
    ledger.identify(room, peer=..., incarnation=...)  # what was not known at the start
    ledger.progress(room, pages=4, bytes=65536)       # adds
    ledger.end(room, Outcome.SUCCESS)                 # or (room, Outcome.FAILED, Reason.NIXL_BACKEND)

A room ends as soon as its end is decided, though a write to its pages may be in flight even so: decode holds such pages
in a quarantine (:mod:`~.quarantine`), and prefill's pages nobody writes.

``end`` and ``expire`` return the terminal record to exactly one caller, and tell it to the functions added with
``ledger.on_end.add(function)``, in the caller's thread and outside the lock: log, metrics and status hang there.

An event that comes late, twice, out of order or for an unknown room changes nothing, is counted (:class:`Anomaly`) and
answered with False or None. ``ValueError`` is raised only for a mistake in the calling code: a phase that the role does
not have, a reason of another outcome, a negative amount.

A room number that is started again after its end is a new room with a new generation; generations are unique in a
ledger. Whoever may hold on to a room longer than it lives (a transfer worker, a timer) passes the ``generation`` that
``start`` returned: an event of an earlier generation is late, and cannot touch the new room. A message that arrives
before its room was started is the caller's to keep: here it is for an unknown room.

Any thread may call. One lock is held, for O(1) work an event. Times are seconds of ``clock``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from sglang.srt.disaggregation.reliable.books import Books
from sglang.srt.disaggregation.reliable.counts import Counts
from sglang.srt.disaggregation.reliable.history import History
from sglang.srt.disaggregation.reliable.listeners import Listeners
from sglang.srt.disaggregation.reliable.phases import Phase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import Anomaly, EndedRoom, Room, RoomRecord

# Rooms looked at under one hold of the lock, where there may be many.
SLICE = 256


class Ledger:
    """See the module. ``clock`` gives seconds and never goes back; the others are :class:`History`'s bounds."""

    def __init__(
        self,
        role: Role,
        *,
        clock: Callable[[], float] = time.monotonic,
        records: int = 1024,
        tombstones: int = 32768,
        tombstone_seconds: float = 600.0,
    ):
        self.role = role
        self.clock = clock
        self.on_end: Listeners[[EndedRoom]] = Listeners("ended rooms")
        # A phase and a time: a room entered the phase then, and no other there waits for its deadline.
        self.on_first_in_phase: Listeners[[Phase, float]] = Listeners("first rooms of a phase")
        self._lock = threading.Lock()
        self._books = Books(role, History(records, tombstones, tombstone_seconds))

    def start(
        self, room: int, *, rid: str | None = None, peer: str | None = None, incarnation: str | None = None
    ) -> int | None:
        """A request with this room number arrived. Returns its generation, or None where the number is live already."""
        with self._lock:
            live = self._books.open(room, self.clock())
            if live is None:
                return None
            live.identify(rid, peer, incarnation)
            first = self._first_in_phase(live)
        self._tell_first(first)
        return live.generation

    def identify(
        self,
        room: int,
        *,
        rid: str | None = None,
        peer: str | None = None,
        incarnation: str | None = None,
        generation: int | None = None,
    ) -> bool:
        """Note what is given; None leaves what was known. Returns whether the room is live."""
        with self._lock:
            live = self._books.find(room, generation, self.clock())
            if live is not None:
                live.identify(rid, peer, incarnation)
            return live is not None

    def enter(self, room: int, phase: Phase, *, generation: int | None = None) -> bool:
        """The room goes on to ``phase``. Returns whether that changed anything."""
        with self._lock:
            now = self.clock()
            live = self._books.find(room, generation, now)
            if live is None or not self._books.enter(live, phase, now):
                return False
            first = self._first_in_phase(live)
        self._tell_first(first)
        return True

    def progress(self, room: int, *, pages: int = 0, bytes: int = 0, generation: int | None = None) -> bool:
        """``pages`` and ``bytes`` more were transferred. Returns whether the room is live."""
        if pages < 0 or bytes < 0:
            raise ValueError(f"negative progress: {pages=} {bytes=}")
        with self._lock:
            now = self.clock()
            live = self._books.find(room, generation, now)
            if live is not None:
                self._books.progress(live, pages, bytes, now)
            return live is not None

    def end(
        self, room: int, outcome: Outcome, reason: Reason = Reason.DELIVERED, *, generation: int | None = None
    ) -> EndedRoom | None:
        """The room ends. Returns its terminal record, or None where it is not live (any more)."""
        if reason.outcome is not outcome:
            raise ValueError(f"{reason} is a reason for {reason.outcome}, not for {outcome}")
        with self._lock:
            now = self.clock()
            live = self._books.find(room, generation, now, again=Anomaly.DUPLICATE)
            record = None if live is None else self._books.close(live, reason, now)
        return self._tell_end(record)

    def expire(self, room: int, generation: int, phase: Phase, reason: Reason) -> EndedRoom | None:
        """End this generation of the room if it is still in ``phase``. Otherwise nothing happens, and nothing is
        counted."""
        with self._lock:
            live = self._books.live.get(room)
            if live is None or live.generation != generation or live.phase != phase:
                return None
            record = self._books.close(live, reason, self.clock())
        return self._tell_end(record)

    def take_overdue(self, phase: Phase, seconds: float) -> list[RoomRecord]:
        """Rooms that have been in ``phase`` for ``seconds`` or longer, longest first; each once a phase, so the caller
        has to deal with them. At most :data:`SLICE` a call."""
        with self._lock:
            now = self.clock()
            return [room.record(now) for room in self._books.queues.take_overdue(phase, seconds, now, SLICE)]

    def first_pending(self, phase: Phase) -> float | None:
        """When the first room entered ``phase`` that was not taken as overdue; None where there is none."""
        with self._lock:
            return self._books.queues.first_pending(phase)

    def phase(self, room: int) -> Phase | None:
        """The phase of a live room; None where it is not live."""
        with self._lock:
            live = self._books.live.get(room)
            return None if live is None else live.phase

    def has_ended(self, room: int) -> bool:
        """Whether the number is known to have ended, and was not started again."""
        return self.end_reason(room) is not None

    def end_reason(self, room: int) -> Reason | None:
        """Why the room ended; None where it is live, was never started, or ended too long ago."""
        with self._lock:
            return self._books.history.reason(room, self.clock())

    def oldest_age(self, phase: Phase) -> float | None:
        """Seconds that the room which entered ``phase`` first has been there; None where no room is."""
        with self._lock:
            oldest = self._books.queues.oldest(phase)
            return None if oldest is None else max(0.0, self.clock() - oldest.entered)

    def live_rooms(self) -> Iterator[RoomRecord]:
        """The live rooms, the first started first; one that ends while this is read may be left out."""
        with self._lock:
            rooms = list(self._books.live.values())
        for begin in range(0, len(rooms), SLICE):
            with self._lock:
                now = self.clock()
                records = [r.record(now) for r in rooms[begin : begin + SLICE] if self._books.live.get(r.room) is r]
            yield from records

    def ended_rooms(self) -> list[EndedRoom]:
        """The rooms that ended last, the last end last."""
        with self._lock:
            return self._books.history.records()

    def counts(self) -> Counts:
        """Everything that is counted, in one consistent reading."""
        with self._lock:
            return self._books.counts(self.clock())

    def check(self) -> None:
        """Raises :class:`~.counts.LedgerError` unless every room that started has ended or is live, in one phase."""
        with self._lock:
            self._books.check()

    def _first_in_phase(self, room: Room) -> tuple[Phase, float] | None:
        return room.timeline[-1] if self._books.queues.has_one_pending(room.phase) else None

    def _tell_first(self, first: tuple[Phase, float] | None) -> None:
        if first is not None:
            self.on_first_in_phase.tell(*first)

    def _tell_end(self, record: EndedRoom | None) -> EndedRoom | None:
        if record is not None:
            self.on_end.tell(record)
        return record
