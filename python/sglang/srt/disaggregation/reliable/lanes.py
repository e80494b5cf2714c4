"""Transfer workers of their own for each peer, so that a peer which hangs holds up only its own rooms."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

Peers = frozenset[str]

# Threads of a peer that has sent nothing for this long are given back, in seconds.
IDLE_S = 60.0


class LaneClosedError(Exception):
    """Nothing came for the lane in a long time; its worker ends."""


class Lane:
    """The chunks for one worker, in order. It is what upstream's worker takes for its queue."""

    def __init__(self, close_if_empty: Callable[[], bool], admit: Callable[[Any, float], bool], idle_s: float) -> None:
        self._close_if_empty = close_if_empty
        self._admit = admit
        self._idle_s = idle_s
        self._chunks: deque[tuple[Any, float]] = deque()
        self._filled = threading.Condition()
        self.current: Any = None

    def __len__(self) -> int:
        return len(self._chunks)

    def put(self, chunk: Any) -> None:
        with self._filled:
            self._chunks.append((chunk, time.monotonic()))
            self._filled.notify()

    def get(self) -> Any:
        """The next chunk that the peer can take; raises :class:`LaneClosedError`."""
        self.current = None
        while True:
            with self._filled:
                arrived = self._filled.wait_for(lambda: self._chunks, self._idle_s)
                found = self._chunks.popleft() if arrived else None
            if found is None:
                # Outside the condition: whoever puts a chunk holds the lanes' lock first.
                if self._close_if_empty():
                    raise LaneClosedError
            elif self._admit(*found):
                self.current = found[0]
                return self.current


class Lanes:
    """``width`` workers for each set of peers, started when a chunk comes; a room stays with one of them.

    ``work`` is a worker's loop: it takes from the lane until that raises :class:`LaneClosedError`. ``admit`` says
    whether a chunk for these peers, queued at that monotonic time, is to be tried; it may wait for the peers, and ends
    the room otherwise. ``failed`` ends the room of a chunk whose
    worker raised what nobody foresaw.
    """

    def __init__(
        self,
        width: int,
        work: Callable[[Peers, Lane], None],
        admit: Callable[[Peers, Any, float], bool],
        failed: Callable[[Any, Exception], None],
        idle_s: float = IDLE_S,
    ) -> None:
        self._width = width
        self._work = work
        self._admit = admit
        self._failed = failed
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._lanes: dict[tuple[Peers, int], Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def put(self, peers: Peers, chunk: Any) -> None:
        key = (peers, chunk.room % self._width)
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = self._open(key)
            lane.put(chunk)

    def _open(self, key: tuple[Peers, int]) -> Lane:
        peers, index = key
        lane = Lane(
            lambda: self._close_if_empty(key), lambda chunk, since: self._admit(peers, chunk, since), self._idle_s
        )
        name = f"transfer-{min(peers, default='none')[:8]}-{index}"
        threading.Thread(target=self._run, args=(peers, lane), name=name, daemon=True).start()
        return lane

    def _close_if_empty(self, key: tuple[Peers, int]) -> bool:
        with self._lock:
            if len(self._lanes[key]):
                return False
            del self._lanes[key]
            return True

    def _run(self, peers: Peers, lane: Lane) -> None:
        while True:
            try:
                self._work(peers, lane)
            except LaneClosedError:
                return
            except Exception as error:
                logger.exception("a transfer worker died and goes on with its next chunk")
                if lane.current is not None:
                    self._failed(lane.current, error)
