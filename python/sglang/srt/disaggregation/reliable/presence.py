"""Which peers are there, from what their control connections go through; pure.

A process that dies closes its connection at once, and connecting again is refused. A network that hiccups, and a
process that is only stopped, do not look like that: the one connects again, the other stays connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

# A broken connection may come back for this long, in seconds, before its peer counts as gone.
GRACE_S = 0.5
# So many attempts to connect must have failed meanwhile.
ATTEMPTS = 2


class Event(Enum):
    """``UP``: connected. ``DOWN``: the connection broke. ``REFUSED``: an attempt to connect failed."""

    UP = auto()
    DOWN = auto()
    REFUSED = auto()


@dataclass
class _Absence:
    since: float
    refused: int = 0


class Presence:
    """Addresses by what was heard of them. Times ``now`` are monotonic seconds; not safe for threads."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._absent: dict[str, _Absence] = {}

    def note(self, address: str, event: Event, now: float) -> None:
        if event is Event.UP:
            self._absent.pop(address, None)
            return
        absence = self._absent.setdefault(address, _Absence(now))
        if event is Event.REFUSED:
            absence.refused += 1

    def forget(self, address: str) -> None:
        """What was noted of the address does not count any more."""
        self._absent.pop(address, None)

    def is_absent(self, address: str) -> bool:
        return address in self._absent

    def take_lost(self, now: float) -> dict[str, float]:
        """Addresses whose peer is gone, and since when; each is returned once."""
        lost = {
            address: absence.since
            for address, absence in self._absent.items()
            if now - absence.since >= self._grace_s and absence.refused >= ATTEMPTS
        }
        for address in lost:
            del self._absent[address]
        return lost
