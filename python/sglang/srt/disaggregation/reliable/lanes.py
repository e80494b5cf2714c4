"""A thread of its own for each decode that prefill writes to, so that one which hangs holds up only its own rooms."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

# The decode ranks that a room goes to, by NIXL agent.
Peers = frozenset[str]
T = TypeVar("T")

# The thread of a decode that was sent nothing for this long is given back, in seconds.
IDLE_S = 60.0


class Inbox(Generic[T]):
    """What comes for one lane, in order. ``stopped``: no more is expected."""

    def __init__(self) -> None:
        self.stopped = False
        self._items: list[T] = []
        self._rung = False
        self._filled = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def waiting(self) -> list[T]:
        """What came and was not taken yet."""
        return list(self._items)

    def put(self, item: T) -> None:
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def stop(self) -> None:
        with self._filled:
            self.stopped = self._rung = True
            self._filled.notify()

    def take(self, timeout_s: float) -> list[T]:
        """Everything that came; where that is nothing, waits for something, or to be stopped, at most ``timeout_s``
        seconds."""
        with self._filled:
            if timeout_s > 0:
                self._filled.wait_for(lambda: self._items or self._rung, timeout_s)
            self._rung = False
            items, self._items = self._items, []
            return items


class Lanes(Generic[T]):
    """One lane for each set of peers, opened when something comes for it.

    ``work(peers, inbox, closed)`` is a lane's life: it takes from the inbox until ``closed()``, which it asks when it
    has been idle for :data:`IDLE_S`, or was stopped, and which is True unless something came meanwhile. Where it
    raises, it is started again.
    """

    def __init__(self, work: Callable[[Peers, Inbox[T], Callable[[], bool]], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._inboxes: dict[Peers, Inbox[T]] = {}

    def __len__(self) -> int:
        return len(self._inboxes)

    def put(self, peers: Peers, item: T) -> None:
        with self._lock:
            inbox = self._inboxes.get(peers)
            if inbox is None:
                inbox = self._inboxes[peers] = Inbox()
                name = f"transfer-{min(peers, default='none')[:8]}"
                threading.Thread(target=self._run, args=(peers, inbox), name=name, daemon=True).start()
            inbox.put(item)

    def stop(self, peer: str) -> None:
        """The peer is gone: its lanes end when they have nothing left to do."""
        with self._lock:
            for peers, inbox in self._inboxes.items():
                if peer in peers:
                    inbox.stop()

    def _run(self, peers: Peers, inbox: Inbox[T]) -> None:
        while True:
            try:
                self._work(peers, inbox, lambda: self._close(peers, inbox))
                return
            except Exception:
                logger.exception("the transfer thread of decode %s failed and is started again", sorted(peers))

    def _close(self, peers: Peers, inbox: Inbox[T]) -> bool:
        with self._lock:
            if len(inbox):
                return False
            del self._inboxes[peers]
            return True
