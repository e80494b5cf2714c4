"""Which rooms' pages decode keeps from reuse, because prefill may still write to them; pure but for a lock.

A room that failed has ended, in the ledger and for its client. But until its prefill has said that nothing of it is in
flight any more, a page that were given to another request could be overwritten with the old one's KV. So decode holds
the pages, and gives them back on the first of three:

- every prefill rank acknowledged that its writes are over;
- all of them are proven dead: a process that is gone posts no write, and the connections it wrote through went with it;
- the time is up. That proves nothing, and is an error: the memory has to come back one day, that is all.

On prefill there is nothing to hold: nobody writes into its pages.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic


class Release(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    PROVEN_DEAD = "proven_dead"
    TIMEOUT = "timeout"


@dataclass(frozen=True, order=True)
class Writer:
    """A prefill rank that may write: where it listens for control messages, which tells whether its process lives."""

    ip: str
    port: int


@dataclass(frozen=True, eq=False)
class Held:
    """The pages of one room, held ``since`` (seconds of the clock); ``peer`` is its prefill's bootstrap address."""

    room: int
    pages: int
    peer: str
    writers: frozenset[Writer]
    since: float


@dataclass(frozen=True)
class QuarantineCounts:
    """One consistent reading. ``released``: rooms whose pages were given back so far, by what allowed it."""

    rooms: int
    pages: int
    oldest_seconds: float
    released: Mapping[Release, int]


class Quarantine:
    """Any thread may call. ``clock`` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        # In the order in which they came, which is that of their age.
        self._held: dict[Held, None] = {}
        self._dead: set[Writer] = set()
        self._released: Counter[Release] = Counter(dict.fromkeys(Release, 0))

    def hold(self, room: int, pages: int, peer: str, writers: frozenset[Writer]) -> Held:
        with self._changed:
            held = Held(room, pages, peer, writers, self._clock())
            self._held[held] = None
            self._changed.notify_all()
            return held

    def release(self, held: Held, acknowledged: bool) -> Release:
        """The pages are given back; returns what allowed it. Raises ``KeyError`` where they are not held."""
        with self._changed:
            del self._held[held]
            result = Release.TIMEOUT
            if acknowledged:
                result = Release.ACKNOWLEDGED
            elif self._is_dead(held):
                result = Release.PROVEN_DEAD
            self._released[result] += 1
            self._forget_dead()
            return result

    def clear(self) -> None:
        """The pool itself is gone, and what was held with it."""
        with self._changed:
            self._held.clear()
            self._forget_dead()

    def age(self, held: Held) -> float:
        return self._clock() - held.since

    def died(self, writer: Writer) -> None:
        """The process of this prefill rank is proven to be gone."""
        with self._changed:
            self._dead.add(writer)
            self._forget_dead()

    def is_dead(self, room: int) -> bool:
        """Whether every rank that may write to the room's held pages is proven dead."""
        with self._changed:
            return any(held.room == room and self._is_dead(held) for held in self._held)

    def wait_for_writers(self, timeout: float | None = None) -> frozenset[Writer]:
        """Block until somebody may write to pages held here; returns all those not proven dead. Empty after
        ``timeout`` seconds without one."""
        with self._changed:
            self._changed.wait_for(self._living, timeout)
            return self._living()

    def counts(self) -> QuarantineCounts:
        with self._changed:
            oldest = next(iter(self._held), None)
            return QuarantineCounts(
                rooms=len(self._held),
                pages=sum(held.pages for held in self._held),
                oldest_seconds=0.0 if oldest is None else self.age(oldest),
                released=dict(self._released),
            )

    def _is_dead(self, held: Held) -> bool:
        return bool(held.writers) and held.writers <= self._dead

    def _living(self) -> frozenset[Writer]:
        return frozenset().union(*(held.writers for held in self._held)) - self._dead

    def _forget_dead(self) -> None:
        # Another process may listen on the same port later.
        self._dead &= frozenset().union(*(held.writers for held in self._held))
