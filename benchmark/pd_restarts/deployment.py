"""A local cluster by the command a user types, and what can be read off it while something is done to its servers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pd_restarts import rooms
from pd_restarts.resources import Resources, measured, scheduler_of
from sglang_pd import ready
from sglang_pd.cluster.plan import Plan
from sglang_pd.cluster.restart import find, running
from sglang_pd.cluster.state import ClusterDir, ProcessState

# On one host UCX would complete a write by shared memory within the call that posts it; a fault needs time to meet it.
TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
FLAGS = ("--dtype", "float32", "--max-total-tokens", "65536", "--chunked-prefill-size", "512", "--enable-metrics")
WATCH_EVERY_S = 0.25


def get(url: str, timeout: float = 5.0) -> tuple[int | None, str]:
    """Status and body; (None, "") where nobody answers in time."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


@dataclass
class Deployment:
    """``home``: where the cluster keeps its state; ``up_flags``: more flags of `sglang-pd up`. ``events``: what
    happened, with seconds since :meth:`begin`."""

    home: Path
    model: Path
    env: Mapping[str, str]
    up_flags: tuple[str, ...] = ()
    prefills: int = 2
    decodes: int = 2
    events: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Deployment:
        self.folder = ClusterDir(self.home / "clusters" / "restarts")
        counts = ("--prefill", str(self.prefills), "--decode", str(self.decodes))
        try:
            self._command("up", "--detach", "--model", str(self.model), *counts, *self.up_flags, "--", *FLAGS)
            plan = self.folder.load_plan()
            assert plan is not None
            self.plan: Plan = plan
        except BaseException:
            self.__exit__()
            raise
        self.zero = time.monotonic()
        self._ended: list[dict[str, Any]] = []
        self._log_from = dict.fromkeys([one.name for one in self.plan.processes], 0)
        return self

    def __exit__(self, *exc: object) -> None:
        # Ctrl-C reaches the whole terminal group; this one has work to do.
        self._command("down", check=False)

    def _command(self, command: str, *flags: str, check: bool = True) -> None:
        argv = [sys.executable, "-m", "sglang_pd.cli", command, "--name", self.folder.name, *flags]
        env = {**os.environ, **TCP, **self.env, "SGLANG_PD_HOME": str(self.home)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, start_new_session=True)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")

    @property
    def gateway(self) -> str:
        return self.plan.gateway.url

    def process(self, name: str) -> ProcessState:
        return find(running(self.folder), name)

    def names(self, role: str) -> list[str]:
        return [one.name for one in self.plan.servers if one.role == role]

    def begin(self) -> None:
        """The time from which events count."""
        self.zero = time.monotonic()

    def note(self, what: str, **more: Any) -> None:
        at = round(time.monotonic() - self.zero, 2)
        self.events.append({"at": at, "what": what, **more})
        print(f"    {at:7.2f} s  {what}", file=sys.stderr, flush=True)

    def note_end(self, name: str) -> None:
        """The process ``name`` has ended: what it logged is counted apart from what the next one will."""
        self._ended.append(self._server(name, ended=True))
        self._log_from[name] = self.folder.log(name).stat().st_size

    def log(self, name: str) -> str:
        """What the present process of that name has logged."""
        with self.folder.log(name).open("rb") as file:
            file.seek(self._log_from[name])
            return file.read().decode(errors="replace")

    def servers(self) -> list[dict[str, Any]]:
        """Failed rooms of every server process so far, those that ended included."""
        return self._ended + [self._server(one.name) for one in self.plan.servers]

    def _server(self, name: str, ended: bool = False) -> dict[str, Any]:
        status, metrics = (None, "") if ended else get(self._url(name) + "/metrics")
        counted = dict(rooms.counted(metrics)) if status == 200 else None
        entry: dict[str, Any] = {"name": name, "logged": dict(rooms.logged(self.log(name))), "counted": counted}
        return entry | {"upstream": dict(rooms.upstream_counted(metrics))}

    def _url(self, name: str) -> str:
        return next(one.url for one in self.plan.processes if one.name == name)

    def ready(self, name: str, timeout: float = 5.0) -> int | None:
        return get(self._url(name) + ready.PATH, timeout)[0]

    def gateway_counters(self) -> dict[str, float]:
        status, text = get(f"http://127.0.0.1:{self.plan.gateway.extra_ports[0]}/metrics")
        return rooms.gateway_counted(text) if status == 200 else {}

    def resources(self, name: str) -> Resources | None:
        """What the scheduler of that server holds; None where it has none."""
        identity = self.process(name).identity
        scheduler = scheduler_of(identity.pid) if identity else None
        if scheduler is None:
            return None
        return measured(scheduler, self._rank(name, "status"), self._rank(name, "peers"))

    def _rank(self, name: str, what: str) -> dict[str, Any] | None:
        status, text = get(f"{self._url(name)}/pd/{what}")
        ranks = json.loads(text).get("ranks") if status == 200 else None
        return ranks[0]["said"] if ranks else None

    def in_gateway(self) -> dict[str, bool]:
        """By server: whether the gateway sends it requests. Empty where the gateway does not answer."""
        return {name: bool(one.get("is_healthy")) for name, one in self._workers().items()}

    def busiest(self, role: str) -> str:
        """The server of that role to which the gateway has most requests in flight."""
        workers = self._workers()
        return max(self.names(role), key=lambda name: workers.get(name, {}).get("load", 0))

    def _workers(self) -> dict[str, dict[str, Any]]:
        status, text = get(f"{self.gateway}/workers")
        if status != 200:
            return {}
        known = {one["url"].rstrip("/"): one for one in json.loads(text)["workers"]}
        return {one.name: known.get(one.url, {}) for one in self.plan.servers}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Meanwhile, what the gateway makes of each server is noted whenever it changes."""
        done = threading.Event()

        def watch() -> None:
            known = self.in_gateway()
            while not done.wait(WATCH_EVERY_S):
                now = self.in_gateway()
                for name, healthy in now.items():
                    if known.get(name, healthy) != healthy:
                        self.note(f"gateway: {name} {'serves' if healthy else 'does not serve'}")
                known = now or known

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
