"""One room as a state machine, and the records that others may keep of it; pure, and without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sglang.srt.disaggregation.reliable.phases import PHASES, POSITION, Phase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason


class Anomaly(StrEnum):
    """An event that changed nothing. Messages arrive late, twice and out of order: that is counted, and no error.

    ``late``: its room, or that generation of it, has ended. ``duplicate``: it said what was known already (a live room
    started, the current phase entered, an ended room ended). ``reordered``: it names a phase that the room has left.
    ``unknown``: its room never started, or ended so long ago that its tombstone is gone.
    """

    LATE = "late"
    DUPLICATE = "duplicate"
    REORDERED = "reordered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RoomRecord:
    """A room as it was at the time ``at``.

    ``timeline``: the phases entered, each with its time. ``pages`` and ``bytes`` are what was transferred; ``moved`` is
    when either grew last, or when the phase was entered if that was later. Times are seconds of the ledger's clock.
    """

    role: Role
    room: int
    generation: int
    rid: str | None
    peer: str | None
    incarnation: str | None
    phase: Phase
    pages: int
    bytes: int
    timeline: tuple[tuple[Phase, float], ...]
    moved: float
    at: float

    @property
    def seconds(self) -> float:
        """Seconds since the room started."""
        return self.at - self.timeline[0][1]

    def phase_seconds(self) -> dict[Phase, float]:
        """Seconds in each phase entered, in order; of the last one, until ``at``."""
        ends = [entered for _, entered in self.timeline[1:]] + [self.at]
        return {phase: end - entered for (phase, entered), end in zip(self.timeline, ends, strict=True)}


@dataclass(frozen=True, slots=True)
class EndedRoom(RoomRecord):
    """A room's terminal event; ``at`` is when its end was decided.

    A write to its pages may be in flight even so: who holds pages back for that is another matter than how it ended.
    """

    reason: Reason
    outcome: Outcome


class Room:
    """A live room. Every method takes the time ``now`` in seconds; one before the current phase's counts as that."""

    __slots__ = (
        "bytes",
        "entered",
        "generation",
        "incarnation",
        "moved",
        "pages",
        "peer",
        "phase",
        "rid",
        "role",
        "room",
        "timeline",
    )

    def __init__(self, role: Role, room: int, generation: int, now: float):
        self.role = role
        self.room = room
        self.generation = generation
        self.rid: str | None = None
        self.peer: str | None = None
        self.incarnation: str | None = None
        self.pages = 0
        self.bytes = 0
        self.phase = PHASES[role][0]
        # When it entered its phase.
        self.entered = self.moved = now
        self.timeline: list[tuple[Phase, float]] = [(self.phase, now)]

    def identify(self, rid: str | None, peer: str | None, incarnation: str | None) -> None:
        """Note what is given; None leaves what was known."""
        self.rid = self.rid if rid is None else rid
        self.peer = self.peer if peer is None else peer
        self.incarnation = self.incarnation if incarnation is None else incarnation

    def enter(self, phase: Phase, now: float) -> Anomaly | None:
        """Go on to a later phase; those between may be left out. Raises ``ValueError`` for one of another role."""
        positions = POSITION[self.role]
        if phase not in positions:
            raise ValueError(f"a room on {self.role} has no phase {phase!r}")
        position = positions[phase]
        if position <= positions[self.phase]:
            return Anomaly.DUPLICATE if phase == self.phase else Anomaly.REORDERED
        self.phase = PHASES[self.role][position]
        self.entered = max(now, self.entered)
        self.moved = max(now, self.moved)
        self.timeline.append((self.phase, self.entered))
        return None

    def record(self, now: float) -> RoomRecord:
        return RoomRecord(**self._fields(now))

    def end(self, reason: Reason, now: float) -> EndedRoom:
        """The terminal event."""
        return EndedRoom(reason=reason, outcome=reason.outcome, **self._fields(now))

    def _fields(self, now: float) -> dict[str, Any]:
        return {
            "role": self.role,
            "room": self.room,
            "generation": self.generation,
            "rid": self.rid,
            "peer": self.peer,
            "incarnation": self.incarnation,
            "phase": self.phase,
            "pages": self.pages,
            "bytes": self.bytes,
            "timeline": tuple(self.timeline),
            "moved": self.moved,
            "at": max(now, self.entered),
        }
