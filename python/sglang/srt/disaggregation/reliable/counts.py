"""How many: the numbers that metrics, status and doctor share; pure, and but for :class:`Reconnects` without a lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sglang.srt.disaggregation.reliable.phases import Phase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import Anomaly, EndedRoom


class LedgerError(RuntimeError):
    """The ledger contradicts itself."""


@dataclass(frozen=True)
class Counts:
    """One consistent reading of a ledger at the time ``at`` (seconds of its clock).

    ``live`` and ``oldest_seconds`` have every phase of the role: rooms in it, and how long the first of them has been
    there (0 where there is none). ``pages`` and ``bytes`` are totals over all rooms, ended or live.
    """

    role: Role
    at: float
    started: int
    ended: Mapping[tuple[Outcome, Phase, Reason], int]
    live: Mapping[Phase, int]
    oldest_seconds: Mapping[Phase, float]
    anomalies: Mapping[Anomaly, int]
    pages: int
    bytes: int

    def check(self) -> None:
        """Raises :class:`LedgerError` unless every room that started has ended or is live."""
        ended, live = sum(self.ended.values()), sum(self.live.values())
        if self.started != ended + live:
            raise LedgerError(f"{self.role}: {self.started} rooms started, but {ended} ended and {live} are live")


class Tally:
    """The running totals. All of them only grow."""

    def __init__(self) -> None:
        self.started = 0
        self.pages = 0
        self.bytes = 0
        self.ended: Counter[tuple[Outcome, Phase, Reason]] = Counter()
        self.anomalies: Counter[Anomaly] = Counter()

    def count_start(self) -> int:
        self.started += 1
        return self.started

    def count_end(self, record: EndedRoom) -> None:
        self.ended[record.outcome, record.phase, record.reason] += 1


class Reconnects:
    """NIXL connections that broke, by what became of them. Any thread may count and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter({"healed": 0, "failed": 0})

    def count(self, result: Literal["healed", "failed"]) -> None:
        with self._lock:
            self._counts[result] += 1

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
