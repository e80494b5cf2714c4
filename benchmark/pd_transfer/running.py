"""Work inside a role's process that takes longer than a call over the pipe may, and what it measured."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class LoadError(RuntimeError):
    """A room failed, got stuck, or arrived with wrong bytes."""


@dataclass(frozen=True)
class Run:
    """What a loop measured on its side. ``cpu_s``: of all threads of the process. ``seconds``: of each room, in the
    order they ended, from its opening to its end."""

    wall_s: float
    cpu_s: float
    rounds: int
    seconds: list[float]

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """One run out of several: times and counts add up."""
        return cls(
            wall_s=sum(run.wall_s for run in runs),
            cpu_s=sum(run.cpu_s for run in runs),
            rounds=sum(run.rounds for run in runs),
            seconds=[second for run in runs for second in run.seconds],
        )


class Background:
    """Work that takes longer than a call over the pipe may: started by one call, waited for by others."""

    def start(self, work: Callable[[], Run]) -> None:
        self._outcome: Run | Exception | None = None
        self._thread = threading.Thread(target=self._guarded, args=(work,), name="load", daemon=True)
        self._thread.start()

    def finished(self, timeout_s: float) -> Run | None:
        """The work's result, None while it goes on. Raises what the work raised."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _guarded(self, work: Callable[[], Run]) -> None:
        try:
            self._outcome = work()
        except Exception as error:  # noqa: BLE001 (it is raised where the result is asked for)
            self._outcome = error


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
