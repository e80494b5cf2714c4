"""How many queued chunks go into the next write; pure.

Small chunks share a write and its status message: at one page a room the calls cost more than the bytes. Large ones do
not: they go one by one, so that the first is done early. The bytes in flight are capped, because a network is full long
before and more in flight then only slows each other down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Sized(Protocol):
    """``bytes`` to write; ``alone``: it must not share a write."""

    bytes: int
    alone: bool


@dataclass(frozen=True)
class Limits:
    """``in_flight``: bytes posted to one peer and not done. ``batch``: bytes of chunks that share a write.

    Either is exceeded only by a chunk that is larger by itself.
    """

    in_flight: int
    batch: int


def how_many(queued: Iterable[Sized], in_flight: int, limits: Limits) -> int:
    """How many chunks from the front of ``queued`` to write now, together; 0 is to wait until a write is done."""
    taken = size = 0
    for chunk in queued:
        room = limits.in_flight - in_flight - size
        if chunk.bytes > room and (in_flight or taken):
            break
        if taken and (chunk.alone or size + chunk.bytes > limits.batch):
            break
        taken += 1
        size += chunk.bytes
        if chunk.alone:
            break
    return taken
