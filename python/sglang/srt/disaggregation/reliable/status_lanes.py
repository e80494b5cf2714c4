"""What prefill has queued and in flight for each decode; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class Chunk(Protocol):
    """A chunk that waits. ``queued``: monotonic seconds."""

    bytes: int
    queued: float

    @property
    def room(self) -> int: ...


class Posted(Protocol):
    """Chunks that were posted together at the monotonic time ``posted``."""

    @property
    def sends(self) -> Collection[Chunk]: ...
    @property
    def posted(self) -> float: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True)
class Lane:
    """One lane as it was at a time.

    ``agents``, ``addresses``: the decode ranks that it writes to. ``queued``: chunks that were not posted, and their
    bytes. ``in_flight``: writes that were posted and are not done. ``stalled``: those of them that have exceeded their
    time, so that their rooms have failed, and still hold their pages. ``oldest_seconds``: since the first of all these
    chunks was queued or posted, 0 without any. ``arrived_seconds``: since a write last arrived, None where none has.
    ``looked_seconds``: since the lane's thread last looked. ``rooms``: whose chunks they are.
    """

    agents: tuple[str, ...]
    addresses: tuple[str, ...]
    queued: int
    queued_bytes: int
    in_flight: int
    in_flight_bytes: int
    stalled: int
    stalled_bytes: int
    oldest_seconds: float
    arrived_seconds: float | None
    looked_seconds: float
    rooms: frozenset[int]

    @property
    def busy(self) -> bool:
        return bool(self.queued or self.in_flight or self.stalled)

    @property
    def quiet_seconds(self) -> float:
        """For how long it has had something to write, and nothing has arrived; 0 where it has nothing."""
        if not self.busy:
            return 0.0
        return self.oldest_seconds if self.arrived_seconds is None else min(self.oldest_seconds, self.arrived_seconds)

    def entry(self) -> dict[str, Any]:
        return {
            "agents": list(self.agents),
            "addresses": list(self.addresses),
            "queued": {"chunks": self.queued, "bytes": self.queued_bytes},
            "in_flight": {"writes": self.in_flight, "bytes": self.in_flight_bytes},
            "stalled": {"writes": self.stalled, "bytes": self.stalled_bytes},
            "oldest_seconds": round(self.oldest_seconds, 3),
            "arrived_seconds": None if self.arrived_seconds is None else round(self.arrived_seconds, 3),
            "looked_seconds": round(self.looked_seconds, 3),
        }


@dataclass(frozen=True)
class Load:
    """What a lane's thread holds. ``arrived``: when a write last did, ``looked``: when it last looked; both in
    monotonic seconds."""

    queued: Collection[Chunk]
    in_flight: Collection[Posted]
    stalled: Collection[Posted]
    arrived: float | None
    looked: float


def lane(agents: Iterable[str], addresses: Iterable[str], coming: Collection[Chunk], load: Load, now: float) -> Lane:
    """``coming``: chunks that its thread has not taken yet."""
    queued = [*coming, *load.queued]
    writes = [*load.in_flight, *load.stalled]
    since = [chunk.queued for chunk in queued] + [write.posted for write in writes]
    return Lane(
        agents=tuple(sorted(agents)),
        addresses=tuple(sorted(addresses)),
        queued=len(queued),
        queued_bytes=sum(chunk.bytes for chunk in queued),
        in_flight=len(load.in_flight),
        in_flight_bytes=sum(write.bytes for write in load.in_flight),
        stalled=len(load.stalled),
        stalled_bytes=sum(write.bytes for write in load.stalled),
        oldest_seconds=max(0.0, now - min(since)) if since else 0.0,
        arrived_seconds=None if load.arrived is None else max(0.0, now - load.arrived),
        looked_seconds=max(0.0, now - load.looked),
        rooms=frozenset([chunk.room for chunk in queued] + [send.room for write in writes for send in write.sends]),
    )
