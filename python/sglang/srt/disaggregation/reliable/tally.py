"""Which rooms have all their chunks written."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol


class Chunked(Protocol):
    """A chunk as it is queued. ``infos`` is the same object for all chunks of a room, and another for another room of
    the same number."""

    chunk: Any
    infos: dict[str, Any]

    @property
    def room(self) -> int: ...


@dataclass
class _Count:
    infos: dict[str, Any]
    left: int = 0
    last_queued: bool = False


class Tally:
    """Counts the chunks of each room that are queued or in flight: the last one may arrive before another. Any thread
    may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[int, _Count] = {}

    def __len__(self) -> int:
        return len(self._rooms)

    def queued(self, send: Chunked) -> None:
        with self._lock:
            count = self._rooms.get(send.room)
            if count is None or count.infos is not send.infos:
                count = self._rooms[send.room] = _Count(send.infos)
            count.left += 1
            count.last_queued |= send.chunk.is_last_chunk

    def written(self, send: Chunked) -> bool:
        """A chunk arrived; returns whether its room is complete, and forgets it then."""
        with self._lock:
            count = self._rooms.get(send.room)
            if count is None or count.infos is not send.infos:
                return False
            count.left -= 1
            if count.left or not count.last_queued:
                return False
            del self._rooms[send.room]
            return True

    def forget(self, room: int) -> None:
        with self._lock:
            self._rooms.pop(room, None)
