"""Which rooms prefill has delivered lately, so that a decode which missed it can be told again; pure, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

LIMIT = 65536


class Deliveries:
    """Rooms by number, each with the serial of the metadata used, by NIXL agent. Every ``now_s`` is monotonic, in
    seconds; the last ``limit`` rooms are kept, each for ``keep_s`` seconds. Not thread-safe."""

    def __init__(self, keep_s: float, limit: int = LIMIT) -> None:
        self._keep_s = keep_s
        self._limit = limit
        self._rooms: OrderedDict[int, tuple[float, Mapping[str, int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rooms)

    def note(self, room: int, serials: Mapping[str, int], now_s: float) -> None:
        self._rooms[room] = now_s, serials
        self._rooms.move_to_end(room)
        while len(self._rooms) > self._limit or now_s - next(iter(self._rooms.values()))[0] > self._keep_s:
            self._rooms.popitem(last=False)

    def has(self, room: int, agent: str, serial: int) -> bool:
        """Whether it was this room that was delivered, and not another of its number."""
        _, serials = self._rooms.get(room, (0.0, {}))
        return serials.get(agent) == serial
