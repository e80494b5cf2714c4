"""Control threads that outlive what they meet, and the count of the messages they got."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

logger = logging.getLogger(__name__)

Result = Literal["handled", "foreign", "truncated", "malformed", "stale", "rejected"]

# A thread that dies at once again must not take a core; one that ran this long had nothing to do with the last death.
BACKOFF_S = (0.01, 1.0)
STEADY_S = 10.0


class MessageCounters:
    """Control messages received, by kind and by what became of them. Any thread may count and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Result]] = Counter()

    def count(self, kind: str, result: Result) -> int:
        """Count one message; returns how many of that kind and result there were so far."""
        with self._lock:
            self._counts[kind, result] += 1
            return self._counts[kind, result]

    def snapshot(self) -> dict[tuple[str, Result], int]:
        with self._lock:
            return dict(self._counts)


def worth_a_line(count: int) -> bool:
    """Whether the ``count``-th event of a kind is logged: 1, 2, 4, 8, ..., so a flood of them is no flood of lines."""
    return count & (count - 1) == 0


@dataclass(frozen=True)
class ThreadState:
    """``up``: the thread runs now. ``restarts``: how often it died and was started again. ``last_error``: of the last
    death, None if none."""

    up: bool
    restarts: int
    last_error: str | None


class Supervisor:
    """Starts control threads, all daemons, and starts each again when it dies.

    ``backoff_s``: the pause before a restart, first and longest, in seconds; it doubles from death to death and is the
    first again after a thread ran :data:`STEADY_S`.
    """

    def __init__(self, backoff_s: tuple[float, float] = BACKOFF_S) -> None:
        self._backoff_s = backoff_s
        self._lock = threading.Lock()
        self._states: dict[str, ThreadState] = {}

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Run ``body`` in a thread called ``name`` for the life of the process; it is not expected to return.

        Raises ``ValueError`` for a name that is taken.
        """
        with self._lock:
            if name in self._states:
                raise ValueError(f"a control thread {name} runs already")
            self._states[name] = ThreadState(up=True, restarts=0, last_error=None)
        threading.Thread(target=self._keep_running, args=(name, body), name=f"{name}-supervisor", daemon=True).start()

    def states(self) -> dict[str, ThreadState]:
        with self._lock:
            return dict(self._states)

    def thread_up(self, name: str) -> bool:
        """Whether the thread runs now; raises ``KeyError`` for a name never started."""
        return self.states()[name].up

    def _keep_running(self, name: str, body: Callable[[], None]) -> None:
        first, longest = self._backoff_s
        pause = first
        while True:
            error, ran_s = _run_once(name, body)
            if ran_s > STEADY_S:
                pause = first
            self._died(name, error)
            time.sleep(pause)
            pause = min(2 * pause, longest)
            self._restarted(name)

    def _died(self, name: str, error: BaseException | None) -> None:
        reason = "returned" if error is None else f"{type(error).__name__}: {error}"
        with self._lock:
            restarts = self._states[name].restarts + 1
            self._states[name] = ThreadState(up=False, restarts=restarts, last_error=reason)
        logger.error("control thread %s died (%s), restart %d", name, reason, restarts, exc_info=error)

    def _restarted(self, name: str) -> None:
        with self._lock:
            state = self._states[name]
            self._states[name] = ThreadState(up=True, restarts=state.restarts, last_error=state.last_error)


def _run_once(name: str, body: Callable[[], None]) -> tuple[BaseException | None, float]:
    """Run ``body`` in a thread of its own until it ends: (what it raised, seconds it ran)."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 (the supervisor reports it, whatever it is)
            raised.append(error)

    start = time.monotonic()
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join()
    return (raised[0] if raised else None), time.monotonic() - start
