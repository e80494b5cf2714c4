"""How many queued chunks go into the next write; pure.

Small chunks share a write and its status message: at one page a room the calls cost more than the bytes. Large ones do
not: they go one by one, so that the first is done early. The bytes in flight are capped, because a network is full long
before and more in flight then only slows each other down. But two writes may always be: while one that is done is dealt
with, the other keeps the network busy (adjacent pages of 64 MiB a room over TCP: 1.1 times as many rooms).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

# So many writes may be in flight however large they are.
ALWAYS = 2


class Sized(Protocol):
    """``bytes`` to write; ``alone``: it must not share a write."""

    bytes: int
    alone: bool


@dataclass(frozen=True)
class Limits:
    """``in_flight``: bytes posted to one peer and not done. ``batch``: bytes of chunks that share a write.

    ``batch`` is exceeded only by a chunk that is larger by itself, ``in_flight`` also by :data:`ALWAYS` such ones.
    """

    in_flight: int
    batch: int


def how_many(queued: Iterable[Sized], writes: int, in_flight: int, limits: Limits) -> int:
    """How many chunks from the front of ``queued`` to write now, together, where ``writes`` of ``in_flight`` bytes are
    under way; 0 is to wait until one of them is done."""
    taken = size = 0
    for chunk in queued:
        room = limits.in_flight - in_flight - size
        if chunk.bytes > room and (writes >= ALWAYS or taken):
            break
        if taken and (chunk.alone or size + chunk.bytes > limits.batch):
            break
        taken += 1
        size += chunk.bytes
        if chunk.alone:
            break
    return taken
