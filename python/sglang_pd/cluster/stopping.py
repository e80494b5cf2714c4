"""Stop processes with everything they started, and prove that it is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglang_pd.cluster.procfs import Identity, Stat, alive, members, send, table

POLL_S = 0.05
# Helpers that outlive their server end by themselves within moments, or not at all.
ORPHAN_WAIT_S = 2.0
# After SIGKILL only the kernel still works; what is not gone by then hangs in a driver.
KILL_WAIT_S = 10.0


@dataclass(frozen=True)
class StopResult:
    """``ended``: processes that were running when we began. ``killed``: those of them that did not end on SIGTERM.
    ``left``: those that even SIGKILL did not end."""

    ended: tuple[Stat, ...]
    killed: tuple[Stat, ...]
    left: tuple[Stat, ...]


def stop_trees(
    roots: Iterable[Identity],
    grace_s: float,
    hurry: Callable[[], bool] = lambda: False,
    reap: Callable[[], None] = lambda: None,
) -> StopResult:
    """SIGTERM to every root at once, SIGKILL to what is left of the trees after ``grace_s``.

    Only roots get SIGTERM: a server stops its own helpers, in the order that frees its memory. The grace ends early
    when ``hurry`` turns true, and soon after the last root has ended. ``reap`` is called in between to take zombies
    away.
    """
    roots = tuple(roots)
    found = {one.identity: one for one in _trees(roots)}
    for root in roots:
        send(root, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    root_seen = time.monotonic()
    while _alive(found) and not hurry():
        now = time.monotonic()
        if any(map(alive, roots)):
            root_seen = now
        if now > min(deadline, root_seen + ORPHAN_WAIT_S):
            break
        reap()
        time.sleep(POLL_S)
    # A process may have started another one since, or have lost its parent: look again, by session.
    found.update((one.identity, one) for one in _trees(roots))
    survivors = _alive(found)
    for one in survivors:
        send(one.identity, signal.SIGKILL)
    deadline = time.monotonic() + KILL_WAIT_S
    while _alive(found) and time.monotonic() < deadline:
        reap()
        time.sleep(POLL_S)
    reap()
    return StopResult(tuple(found.values()), survivors, _alive(found))


def _trees(roots: tuple[Identity, ...]) -> list[Stat]:
    processes = table()
    return [one for root in roots for one in members(root, processes)]


def _alive(found: dict[Identity, Stat]) -> tuple[Stat, ...]:
    return tuple(one for identity, one in found.items() if alive(identity))
