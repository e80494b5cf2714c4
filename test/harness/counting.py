"""What servers say of their rooms on ``/metrics`` and in their logs, read while rooms come and go."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.fleet import PATIENCE_S, Server
from sglang.srt.disaggregation.reliable.report import LoggedRoom, parse_warning_line

SAMPLE = re.compile(r"^(sglang:\w+?)(?:\{(.*?)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
SCRAPES_PER_S = 10


@dataclass
class Rooms:
    """One scrape. ``ended``: by outcome and reason. ``age``: of the reading scraped, in seconds. ``upstreams``:
    upstream's own counters, by name and tensor-parallel rank."""

    started: int = 0
    live: int = 0
    age: float = 0.0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    upstreams: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def balanced(self) -> bool:
        return self.started == sum(self.ended.values()) + self.live

    @property
    def failed(self) -> Counter[str]:
        """Rooms that failed, by reason."""
        return Counter({reason: count for (outcome, reason), count in self.ended.items() if outcome == "failed"})


# Upstream's own counters. A request that its client aborts counts there as a failed one, and once for each rank.
UPSTREAMS = ("sglang:num_bootstrap_failed_reqs_total", "sglang:num_transfer_failed_reqs_total")


def rooms(text: str) -> Rooms:
    """``text``: of ``/metrics``."""
    found = Rooms()
    for name, labels, value in SAMPLE.findall(text):
        if name == "sglang:pd_rooms_started_total":
            found.started += int(float(value))
        elif name == "sglang:pd_rooms_live":
            found.live += int(float(value))
        elif name == "sglang:pd_reading_age_seconds":
            found.age = max(found.age, float(value))
        elif name == "sglang:pd_rooms_ended_total":
            of = dict(LABEL.findall(labels))
            found.ended[of["outcome"], of["reason"]] += int(float(value))
        elif name in UPSTREAMS:
            found.upstreams[name, int(dict(LABEL.findall(labels))["tp_rank"])] += int(float(value))
    return found


def settled(server: Server) -> Rooms:
    """The rooms of a server that nobody asks for anything: none lives, and the reading is of now. Raises
    ``AssertionError`` where one lives on."""
    start = time.monotonic()
    while True:
        found = rooms(server.metrics())
        if not found.live and found.started and found.age < time.monotonic() - start:
            return found
        assert time.monotonic() < start + PATIENCE_S, f"{server.name}: {found}"
        time.sleep(0.1)


def failure_lines(server: Server) -> list[LoggedRoom]:
    """What its log says of failed rooms so far."""
    return [parse_warning_line(line) for line in server.failed_rooms()]


class Scrapes:
    """Scrapes ``servers`` ten times a second each while it is entered; ``unbalanced`` holds what did not add up."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.counts: Counter[str] = Counter()
        self.unbalanced: list[tuple[str, Rooms]] = []
        self.most_live = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._scrape, args=(server,)) for server in servers]

    def __enter__(self) -> Scrapes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _scrape(self, server: Server) -> None:
        while not self._stop.wait(1 / SCRAPES_PER_S):
            try:
                found = rooms(server.metrics())
            except OSError:  # it is being replaced, or stands still
                continue
            self.counts[server.name] += 1
            self.most_live = max(self.most_live, found.live)
            if not found.balanced:
                self.unbalanced.append((server.name, found))
