"""A scheduler rank, and a room, as one server tells of them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_pd.doctor.shapes import objects


@dataclass(frozen=True)
class Rank:
    """One scheduler rank. ``status``, ``peers``: what it said; empty where it did not, and ``problem`` says why."""

    name: str
    pid: int
    problem: str | None
    status: Mapping[str, Any]
    peers: Mapping[str, Any]

    @property
    def gone(self) -> bool:
        return self.problem is not None and self.problem.endswith("is gone")

    @property
    def loop_age(self) -> float | None:
        return self.status.get("loop_age_seconds")


@dataclass(frozen=True)
class Room:
    """A room on one server. ``phase_seconds``: how long it has been in its phase; ``since``: since when."""

    server: str
    room: int
    rid: str | None
    peer: str | None
    live: bool
    phase: str
    outcome: str | None
    reason: str | None
    started_at: float
    ended_at: float | None
    seconds: float
    phase_seconds: float
    bytes: int

    @property
    def since(self) -> float:
        return self.started_at + self.seconds - self.phase_seconds

    @property
    def words(self) -> str:
        if self.live:
            return f"{self.phase} for {self.phase_seconds:.1f} s"
        return f"{self.outcome}{f' ({self.reason})' if self.outcome != 'success' else ''} after {self.seconds:.1f} s"

    @classmethod
    def of(cls, server: str, one: Mapping[str, Any]) -> Room:
        """From an entry of ``/pd/rooms``."""
        timeline = objects(one, "timeline")
        return cls(
            server=server,
            room=one["room"],
            rid=one.get("rid"),
            peer=one.get("peer"),
            live=one.get("state") == "live",
            phase=one.get("phase") or "",
            outcome=one.get("outcome"),
            reason=one.get("reason"),
            started_at=one.get("started_at") or 0.0,
            ended_at=one.get("ended_at"),
            seconds=one.get("seconds") or 0.0,
            phase_seconds=(timeline[-1].get("seconds") if timeline else one.get("seconds")) or 0.0,
            bytes=one.get("bytes") or 0,
        )
