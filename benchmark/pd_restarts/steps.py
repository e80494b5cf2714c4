"""What is done to the servers of a site while requests go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from pd_restarts import resources
from pd_restarts.deployment import Deployment
from pd_restarts.resources import scheduler_of
from sglang_pd.cluster.procfs import Identity, alive, members, send, table
from sglang_pd.cluster.restart import drained_s, end, wait_ready, wait_served

READY_S = 120.0
POLL_S = 0.05
# How long a server whose scheduler is dead may go on answering HTTP before we end it ourselves.
HEADLESS_S = 30.0


class Step(Protocol):
    def run(self, site: Deployment) -> None: ...


@dataclass(frozen=True)
class Pause:
    """Nothing, for a while."""

    seconds: float

    def run(self, site: Deployment) -> None:
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Restart:
    """End the servers ``who`` together, by SIGKILL or by SIGTERM, and start them again on their ports.

    Each is a server's name, or a role: of that the one that has most to do at that moment.
    """

    who: Sequence[str]
    kill: bool = True

    def run(self, site: Deployment) -> None:
        names = [named(site, one) for one in self.who]
        before = [site.process(name) for name in names]
        all_ = " and ".join(names)
        site.note(f"{'kill -9' if self.kill else 'SIGTERM'} {all_}")
        end(site.folder, before, kill=self.kill, grace_s=drained_s())
        for name in names:
            site.note_end(name)
        site.note(f"{all_} gone")
        after = wait_ready(site.folder, before, time.monotonic() + READY_S)
        site.note(f"{all_} ready again")
        wait_served(site.folder, after, time.monotonic() + READY_S)


def named(site: Deployment, who: str) -> str:
    return site.busiest(who) if who in ("prefill", "decode") else who


@dataclass(frozen=True)
class InTurn:
    """``times`` restarts in a row, of one of ``names`` after the other."""

    names: Sequence[str]
    times: int
    kill: bool = True

    def run(self, site: Deployment) -> None:
        for number in range(self.times):
            Restart((self.names[number % len(self.names)],), self.kill).run(site)


@dataclass(frozen=True)
class Hang:
    """Every process of ``who``, as in :class:`Restart`, stands still for ``seconds``, then goes on."""

    who: str
    seconds: float

    def run(self, site: Deployment) -> None:
        name = named(site, self.who)
        before = site.process(name)
        assert before.identity is not None
        stopped = [one.identity for one in members(before.identity, table())]
        site.note(f"SIGSTOP {name}")
        try:
            signal_all(stopped, signal.SIGSTOP)
            until = time.monotonic() + self.seconds
            while time.monotonic() < until and alive(before.identity):
                time.sleep(POLL_S)
        finally:
            signal_all(stopped, signal.SIGCONT)
        if alive(before.identity):
            site.note(f"SIGCONT {name}")
            return
        site.note_end(name)
        site.note(f"{name} was killed by its supervisor")
        wait_ready(site.folder, [before], time.monotonic() + READY_S)
        site.note(f"{name} ready again")


@dataclass(frozen=True)
class KillScheduler:
    """SIGKILL to the scheduler process of ``name`` alone: its HTTP process is left, for as long as it stays."""

    name: str

    def run(self, site: Deployment) -> None:
        before = site.process(self.name)
        assert before.identity is not None
        scheduler = scheduler_of(before.identity.pid)
        assert scheduler is not None
        site.folder.want_restart(self.name)
        start, wall = time.monotonic(), time.time()
        scheduler.kill()
        site.note(f"kill -9 of {self.name}'s scheduler")
        found: dict[str, float] = {}
        while alive(before.identity) and time.monotonic() < start + HEADLESS_S:
            if "not ready" not in found and site.ready(self.name, timeout=1) != 200:
                found["not ready"] = time.monotonic() - start
            if "gateway stops" not in found and not site.in_gateway().get(self.name, True):
                found["gateway stops"] = time.monotonic() - start
            time.sleep(POLL_S)
        if alive(before.identity):
            site.note(f"{self.name}'s HTTP process stays: ended")
            end(site.folder, [before], kill=True, grace_s=0)
        else:
            found["server ended"] = time.monotonic() - start
        site.note_end(self.name)
        late = [one for name in site.names("decode") for one in failed_after(site.log(name), wall)]
        if late:
            found["last decode error"] = max(late)
        site.results["dead_scheduler"] = {what: round(seconds, 2) for what, seconds in found.items()}
        wait_ready(site.folder, [before], time.monotonic() + READY_S)
        site.note(f"{self.name} ready again")


@dataclass(frozen=True)
class Measured:
    """``step`` ``times`` times, with what every prefill server holds before, in between and afterwards."""

    step: Step
    times: int
    every: int = 10
    settle_s: float = 5.0

    def run(self, site: Deployment) -> None:
        site.results["resources"] = []
        self._measure(site, 0)
        for number in range(1, self.times + 1):
            self.step.run(site)
            if number % self.every == 0 or number == self.times:
                time.sleep(self.settle_s)
                self._measure(site, number)

    def _measure(self, site: Deployment, number: int) -> None:
        for name in site.names("prefill"):
            held = site.resources(name)
            if held is not None:
                site.results["resources"].append({"after": number, "server": name, **resources.row(held)})
                site.note(f"{name} after {number}: {held}")


def signal_all(processes: Sequence[Identity], number: signal.Signals) -> None:
    for one in processes:
        send(one, number)


def failed_after(log: str, wall: float) -> list[float]:
    """Seconds after ``wall`` at which rooms failed, by the time stamps of the log; these have whole seconds."""
    found = []
    for line in log.splitlines():
        if "PD room failed: " in line and line.startswith("["):
            at = datetime.strptime(line[1:20], "%Y-%m-%d %H:%M:%S").timestamp()
            if at >= int(wall):
                found.append(max(0.0, at - wall))
    return found
