"""What prefill remembers of rooms that have no sender: pure, bounded in number and age.

A room's two halves reach prefill in any order, the request through the scheduler and its metadata from decode. So one
may come after the other was given up, and must then be answered rather than waited for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

LIMIT = 65536


@dataclass
class _Tombstone:
    reason: str
    since_s: float
    told: dict[str, int | None] = field(default_factory=dict)


class Tombstones:
    """Rooms by number, each with the reason it ended. Every ``now_s`` is monotonic, in seconds; not thread-safe.

    At most ``limit`` rooms are kept, the youngest, each for at most ``keep_s`` seconds: as long as the other half may
    still come.
    """

    def __init__(self, keep_s: float, limit: int = LIMIT) -> None:
        self._keep_s = keep_s
        self._limit = limit
        self._rooms: OrderedDict[int, _Tombstone] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rooms)

    def bury(self, room: int, reason: str, now_s: float, told: Mapping[str, int | None] = MappingProxyType({})) -> None:
        """The room has ended; the agents in ``told`` know, or had their metadata used: that of the serial named."""
        self._rooms[room] = _Tombstone(reason, now_s, dict(told))
        self._rooms.move_to_end(room)
        while self._rooms and (
            len(self._rooms) > self._limit or self._expired(next(iter(self._rooms.values())), now_s)
        ):
            self._rooms.popitem(last=False)

    def owed(self, room: int, agent: str, now_s: float, serial: int | None = None) -> str | None:
        """The reason that ``agent`` must be told, whose metadata came after the room had ended: each agent once, and
        again where its metadata comes again, which its ``serial`` tells.

        None where the metadata is that of a live or new room.
        """
        stone = self._rooms.get(room)
        if stone is None or self._expired(stone, now_s):
            return None
        if agent in stone.told and (serial is None or stone.told[agent] != serial):
            return None
        stone.told[agent] = serial
        return stone.reason

    def covers(self, room: int, now_s: float) -> bool:
        """Whether the room is known to have ended."""
        stone = self._rooms.get(room)
        return stone is not None and not self._expired(stone, now_s)

    def dig_up(self, room: int, now_s: float) -> str | None:
        """Forget the room, and return its reason if it had one."""
        stone = self._rooms.pop(room, None)
        return None if stone is None or self._expired(stone, now_s) else stone.reason

    def _expired(self, stone: _Tombstone, now_s: float) -> bool:
        return now_s - stone.since_s > self._keep_s
