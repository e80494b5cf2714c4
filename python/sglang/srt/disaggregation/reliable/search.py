"""Find rooms among the live and the ended ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import Phase
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom, RoomRecord


class State(StrEnum):
    LIVE = "live"
    ENDED = "ended"


def state_of(record: RoomRecord) -> State:
    return State.ENDED if isinstance(record, EndedRoom) else State.LIVE


@dataclass(frozen=True)
class RoomFilter:
    """What a room must be; None asks for nothing. A live room has no reason."""

    room: int | None = None
    rid: str | None = None
    peer: str | None = None
    phase: Phase | None = None
    reason: Reason | None = None
    state: State | None = None

    def matches(self, record: RoomRecord) -> bool:
        return all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.room, record.room),
                (self.rid, record.rid),
                (self.peer, record.peer),
                (self.phase, record.phase),
                (self.reason, record.reason if isinstance(record, EndedRoom) else None),
                (self.state, state_of(record)),
            )
        )


def find_rooms(ledger: Ledger, wanted: RoomFilter, limit: int = 1000) -> list[RoomRecord]:
    """At most ``limit`` rooms: live ones, oldest first, then ended ones, the last end first. None is listed twice."""
    found: dict[int, RoomRecord] = {}
    # Live ones first: one that ends in between is then seen once at least, and known by its generation.
    for rooms in (ledger.live_rooms(), reversed(ledger.ended_rooms())):
        for record in rooms:
            if len(found) == limit:
                return list(found.values())
            if wanted.matches(record):
                found.setdefault(record.generation, record)
    return list(found.values())
