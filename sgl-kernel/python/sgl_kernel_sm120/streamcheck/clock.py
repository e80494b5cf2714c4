"""Vector clocks: what of every stream's work is known to be over.

A clock maps a stream's number to the count of its operations that happen before. An operation is the pair of its
stream and its count on that stream (its tick).
"""

from __future__ import annotations

Clock = dict[int, int]
HOST = -1


def join(into: Clock, other: Clock) -> None:
    """``into`` knows afterwards what either knew."""
    for stream, tick in other.items():
        if into.get(stream, 0) < tick:
            into[stream] = tick


def covers(clock: Clock, stream: int, tick: int) -> bool:
    """Whether the operation ``(stream, tick)`` happens before whatever has ``clock``."""
    return clock.get(stream, 0) >= tick
