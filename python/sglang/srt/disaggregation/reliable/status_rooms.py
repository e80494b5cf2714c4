"""What a scheduler rank says of its rooms on ``/pd/rooms``; pure. ``docs/status.md`` tells the schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.disaggregation.reliable.query import RoomQuery
from sglang.srt.disaggregation.reliable.room import EndedRoom, RoomRecord
from sglang.srt.disaggregation.reliable.search import state_of
from sglang.srt.disaggregation.reliable.status import Moment, Speaker


def listing(speaker: Speaker, now: Moment, query: RoomQuery, found: Sequence[RoomRecord] | None) -> dict[str, Any]:
    """``found``: the rooms that were asked for, one more than the limit where there are more; None with upstream's
    classes, which keep no accounts."""
    return {
        **speaker.head("rooms", now),
        "filter": query.given,
        "limit": query.limit,
        "truncated": found is not None and len(found) > query.limit,
        "rooms": None if found is None else [entry(record, now) for record in found[: query.limit]],
    }


def entry(record: RoomRecord, now: Moment) -> dict[str, Any]:
    """One room. ``seconds``: since it started, until it ended or until now."""
    ended = record if isinstance(record, EndedRoom) else None
    seconds = record.phase_seconds()
    return {
        "room": record.room,
        "generation": record.generation,
        "state": str(state_of(record)),
        "rid": record.rid,
        "peer": record.peer,
        "incarnation": record.incarnation,
        "phase": str(record.phase),
        "outcome": None if ended is None else str(ended.outcome),
        "reason": None if ended is None else str(ended.reason),
        "pages": record.pages,
        "bytes": record.bytes,
        "started_at": now.of(record.timeline[0][1]),
        "ended_at": None if ended is None else now.of(ended.at),
        "seconds": round(record.seconds, 3),
        "timeline": [
            {"phase": str(phase), "at": now.of(entered), "seconds": round(seconds[phase], 3)}
            for phase, entered in record.timeline
        ],
    }
