"""Live rooms by phase, in the order in which they entered it; pure.

All rooms of a phase have the same deadline, so the one that entered first is overdue first: a queue per phase is an
exact timer, and every operation is O(1) a room.
"""

from __future__ import annotations

from collections import OrderedDict

from sglang.srt.disaggregation.reliable.phases import PHASES, Phase, Role
from sglang.srt.disaggregation.reliable.room import Room


class PhaseQueues:
    """Where each live room stands. A room is in one phase, and there either pending or already told to be overdue."""

    def __init__(self, role: Role):
        self._pending: dict[Phase, OrderedDict[int, Room]] = {phase: OrderedDict() for phase in PHASES[role]}
        self._overdue: dict[Phase, OrderedDict[int, Room]] = {phase: OrderedDict() for phase in PHASES[role]}

    def add(self, room: Room) -> None:
        """Put a room at the end of its phase."""
        self._pending[room.phase][room.room] = room

    def has_one_pending(self, phase: Phase) -> bool:
        return len(self._pending[phase]) == 1

    def remove(self, room: Room, phase: Phase) -> None:
        """Take a room out of ``phase``; raises ``KeyError`` where it is not there."""
        if self._pending[phase].pop(room.room, None) is None:
            del self._overdue[phase][room.room]

    def count(self, phase: Phase) -> int:
        return len(self._pending[phase]) + len(self._overdue[phase])

    def oldest(self, phase: Phase) -> Room | None:
        """The room that has been in ``phase`` longest."""
        # Whatever is overdue entered before everything that is still pending.
        for rooms in (self._overdue[phase], self._pending[phase]):
            if rooms:
                return next(iter(rooms.values()))
        return None

    def first_pending(self, phase: Phase) -> float | None:
        """When the first room entered ``phase`` that was not taken as overdue yet; None if there is none."""
        pending = self._pending[phase]
        return next(iter(pending.values())).entered if pending else None

    def take_overdue(self, phase: Phase, seconds: float, now: float, limit: int) -> list[Room]:
        """At most ``limit`` rooms that have been in ``phase`` for ``seconds`` or longer; none is ever taken twice."""
        pending, overdue = self._pending[phase], self._overdue[phase]
        taken: list[Room] = []
        while pending and len(taken) < limit:
            room = next(iter(pending.values()))
            if room.entered + seconds > now:
                break
            del pending[room.room]
            overdue[room.room] = room
            taken.append(room)
        return taken
