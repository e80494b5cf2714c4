"""What a KV manager has to tell in numbers: all of it in one reading, and the thread that hands readings on."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.reliable import families, readings
from sglang.srt.disaggregation.reliable.readings import Reading, Sample
from sglang.srt.disaggregation.reliable.room import EndedRoom

PERIOD_S = 1.0


class PhaseSeconds:
    """The histogram of the time that ended rooms spent in each phase. Any thread may observe and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By role and phase: rooms per bucket, the infinite one last, and the sum of seconds.
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def observe(self, record: EndedRoom) -> None:
        with self._lock:
            for phase, seconds in record.phase_seconds().items():
                key = str(record.role), str(phase)
                buckets = self._buckets.setdefault(key, [0] * (len(families.PHASE_SECONDS_LE) + 1))
                buckets[bisect.bisect_left(families.PHASE_SECONDS_LE, seconds)] += 1
                self._sums[key] = self._sums.get(key, 0.0) + seconds

    def samples(self) -> list[Sample]:
        """For each role and phase: the buckets, then the sum."""
        with self._lock:
            return [(key, [*buckets, self._sums[key]]) for key, buckets in self._buckets.items()]


class Metrics:
    """The numbers of one manager, a ``ReliableKVManager``."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._phase_seconds = PhaseSeconds()
        manager.accounts.ledger.on_end.add(self._phase_seconds.observe)

    def read(self) -> Reading:
        manager = self._manager
        # First: what is read later may only be newer.
        phase_seconds = self._phase_seconds.samples()
        counts = manager.accounts.ledger.counts()
        held = manager.quarantine.counts()
        role = str(counts.role)
        return Reading(
            role=role,
            at=time.monotonic(),
            samples={
                families.STARTED.name: [((role,), counts.started)],
                families.ENDED.name: [((role, *map(str, key)), number) for key, number in counts.ended.items()],
                families.LIVE.name: [((role, str(phase)), number) for phase, number in counts.live.items()],
                families.OLDEST.name: [((role, str(phase)), age) for phase, age in counts.oldest_seconds.items()],
                families.PHASE_SECONDS.name: phase_seconds,
                families.BYTES.name: [((role,), counts.bytes)],
                families.RECONNECTS.name: [((r,), number) for r, number in manager.reconnects.snapshot().items()],
                families.MESSAGES.name: [(key, number) for key, number in manager.messages.snapshot().items()],
                families.THREAD_UP.name: [((name,), int(s.up)) for name, s in manager.control.states().items()],
                families.QUARANTINED.name: [((), held.pages)],
                families.QUARANTINE_AGE.name: [((), held.oldest_seconds)],
                families.STALLS.name: [((role, *key), number) for key, number in manager.watchdog.counts().items()],
                families.QUARANTINE_RELEASED.name: [((str(r),), number) for r, number in held.released.items()],
            },
        )


def publish(read: Callable[[], Reading], stop: threading.Event, period_s: float = PERIOD_S) -> None:
    """The body of the thread that hands readings on: at once, then every ``period_s`` seconds until ``stop``."""
    folder = readings.folder()
    while True:
        readings.write(folder, read())
        if stop.wait(period_s):
            return
