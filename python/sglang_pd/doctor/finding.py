"""What a rule found: which hop is broken, since when, for which requests, why we think so, and what to do; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """``FAULT``: requests suffer now. ``WARNING``: some do, or soon will. ``NOTE``: over, or harmless; worth knowing.
    ``UNKNOWN``: the evidence does not suffice. ``HEALTHY``: nothing is wrong."""

    HEALTHY = 0
    UNKNOWN = 1
    NOTE = 2
    WARNING = 3
    FAULT = 4


class Support(IntEnum):
    """How well the evidence carries a finding. ``SURE``: it was seen itself. ``LIKELY``: it fits, and nothing else that
    we know does. ``POSSIBLE``: it fits, as other things would."""

    POSSIBLE = 1
    LIKELY = 2
    SURE = 3


@dataclass(frozen=True)
class RoomRef:
    """A room that a finding is about. ``prefill``, ``decode``: how far it is there, in words; None where it is not."""

    room: int
    rid: str | None = None
    prefill: str | None = None
    decode: str | None = None


@dataclass(frozen=True)
class Finding:
    """``hop``: where the chain from client to answer is broken. ``since``: seconds since the epoch, None where nothing
    tells. ``rooms`` are the first of ``rooms_total``."""

    rule: str
    severity: Severity
    support: Support
    hop: str
    headline: str
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    since: float | None = None
    rooms: tuple[RoomRef, ...] = ()
    rooms_total: int = 0

    def to_data(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            **asdict(self),
            "severity": self.severity.name.lower(),
            "support": self.support.name.lower(),
            "rooms": [asdict(one) for one in self.rooms],
        }


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe and best supported first; those that are equal stay in order."""
    return sorted(findings, key=lambda one: (-one.severity, -one.support))
