"""What a ledger keeps, without the lock: live rooms, their order, the totals, the memory of ended ones; pure."""

from __future__ import annotations

from sglang.srt.disaggregation.reliable.counts import Counts, LedgerError, Tally
from sglang.srt.disaggregation.reliable.history import History
from sglang.srt.disaggregation.reliable.phases import PHASES, Phase, Role
from sglang.srt.disaggregation.reliable.queues import PhaseQueues
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.room import Anomaly, EndedRoom, Room


class Books:
    """Not safe for threads by itself. Times ``now`` are seconds and never go back."""

    def __init__(self, role: Role, history: History):
        self.role = role
        self.live: dict[int, Room] = {}
        self.queues = PhaseQueues(role)
        self.history = history
        self.tally = Tally()

    def open(self, number: int, now: float) -> Room | None:
        """A new room; None where the number is live already."""
        if number in self.live:
            self.tally.anomalies[Anomaly.DUPLICATE] += 1
            return None
        self.history.forget(number)
        room = self.live[number] = Room(self.role, number, self.tally.count_start(), now)
        self.queues.add(room)
        return room

    def find(self, number: int, generation: int | None, now: float, again: Anomaly = Anomaly.LATE) -> Room | None:
        """The live room that an event is for. Where there is none, that is counted, as ``again`` if the room has
        ended."""
        room = self.live.get(number)
        if room is not None and generation in (None, room.generation):
            return room
        # Only we give out generations: a room that has one did start, however long ago.
        ended = generation is not None or self.history.has_ended(number, now)
        self.tally.anomalies[again if ended else Anomaly.UNKNOWN] += 1
        return None

    def enter(self, room: Room, phase: Phase, now: float) -> bool:
        """Returns whether the room went on to ``phase``."""
        before = room.phase
        anomaly = room.enter(phase, now)
        if anomaly is not None:
            self.tally.anomalies[anomaly] += 1
            return False
        self.queues.remove(room, before)
        self.queues.add(room)
        return True

    def close(self, room: Room, reason: Reason, now: float) -> EndedRoom:
        self.queues.remove(room, room.phase)
        del self.live[room.room]
        record = room.end(reason, now)
        self.tally.count_end(record)
        self.history.add(record)
        return record

    def progress(self, room: Room, pages: int, bytes: int, now: float) -> None:
        room.moved = max(now, room.moved)
        room.pages += pages
        room.bytes += bytes
        self.tally.pages += pages
        self.tally.bytes += bytes

    def counts(self, now: float) -> Counts:
        phases = PHASES[self.role]
        oldest = {phase: self.queues.oldest(phase) for phase in phases}
        return Counts(
            role=self.role,
            at=now,
            started=self.tally.started,
            ended=dict(self.tally.ended),
            live={phase: self.queues.count(phase) for phase in phases},
            oldest_seconds={phase: max(0.0, now - room.entered) if room else 0.0 for phase, room in oldest.items()},
            anomalies=dict(self.tally.anomalies),
            pages=self.tally.pages,
            bytes=self.tally.bytes,
        )

    def check(self) -> None:
        """Raises :class:`LedgerError` unless ``started == ended + live``, and every live room stands in one phase."""
        counts = self.counts(0.0)
        counts.check()
        standing = sum(counts.live.values())
        if standing != len(self.live):
            raise LedgerError(f"{self.role}: {len(self.live)} rooms are live, but {standing} stand in a phase")
