"""End processes of a running cluster, each as a whole tree, and have its supervisor start them again.

It keeps ports, command line, environment and log: what changes is the process. Every other process goes on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_pd.cluster import probe
from sglang_pd.cluster.phases import ENDED, Phase, registered
from sglang_pd.cluster.procfs import Identity, members, send, table
from sglang_pd.cluster.state import ClusterDir, ClusterState, ProcessState, is_stale
from sglang_pd.cluster.stopping import stop_trees
from sglang_pd.cluster.words import why_down
from sglang_pd.environ import envs
from sglang_pd.errors import UserError

POLL_S = 0.1
# From the end of the drain to the end of the process.
EXIT_S = 5.0


@dataclass(frozen=True)
class Restarted:
    """``end_s``: from the signal until its processes were gone; ``ready_s``: from its new launch until it was ready."""

    name: str
    pid: int
    end_s: float
    ready_s: float


def restart(
    folder: ClusterDir, names: Sequence[str], *, kill: bool, grace_s: float, timeout_s: float
) -> list[Restarted]:
    """End ``names`` together, and wait until they are ready again and the gateway sends them requests: then the next
    one may be restarted.

    SIGTERM, and SIGKILL to what is left after ``grace_s`` seconds; with ``kill`` SIGKILL to every process of them at
    once. Raises :class:`UserError`: exit code 2 for a cluster or a name that there is not, 1 where they were not ready
    again within ``timeout_s`` seconds.
    """
    before = [find(running(folder), name) for name in names]
    start = time.monotonic()
    end(folder, before, kill=kill, grace_s=grace_s)
    ended = time.monotonic()
    after = wait_ready(folder, before, ended + timeout_s)
    wait_served(folder, after, ended + timeout_s)
    return [
        Restarted(one.name, one.identity.pid if one.identity else 0, ended - start, one.ready_s or 0.0) for one in after
    ]


def drained_s() -> float:
    """Seconds from SIGTERM in which a server has drained and ended."""
    return envs.SGLANG_PD_DRAIN_TIMEOUT.get() + EXIT_S


def running(folder: ClusterDir) -> ClusterState:
    """The state of a cluster that is up; raises :class:`UserError` where it is not."""
    state = folder.load()
    if state is None or state.phase in ENDED or is_stale(state):
        raise UserError(f"no cluster '{folder.name}' is up; see `sglang-pd status --name {folder.name}`")
    if state.phase is not Phase.READY:
        raise UserError(f"cluster '{folder.name}' is {state.phase.value}; try again when it is ready", exit_code=1)
    return state


def find(state: ClusterState, name: str) -> ProcessState:
    """The process of that name; raises :class:`UserError`."""
    for one in state.processes:
        if one.name == name:
            return one
    raise UserError(f"no process {name!r} in cluster '{state.name}'; there are: {', '.join(_names(state))}")


def _names(state: ClusterState) -> list[str]:
    return [one.name for one in state.processes]


def end(folder: ClusterDir, processes: Sequence[ProcessState], *, kill: bool, grace_s: float) -> None:
    """End the trees of ``processes``; their supervisor knows that this is wanted. Raises :class:`UserError` (exit code
    1) where one cannot be ended."""
    for one in processes:
        folder.want_restart(one.name)
    roots = [one.identity for one in processes if one.identity]
    if kill:
        kill_trees(roots)
    left = stop_trees(roots, 0.0 if kill else grace_s).left
    if left:
        for one in processes:
            folder.restart_done(one.name)
        pids = ", ".join(f"{one.name} (pid {one.pid})" for one in left)
        raise UserError(f"could not be ended: {pids}", exit_code=1)


def kill_trees(roots: Sequence[Identity]) -> None:
    """SIGKILL to every process of these trees, with nothing in between for them to notice each other's end."""
    processes = table()
    for root in roots:
        for one in members(root, processes):
            send(one.identity, signal.SIGKILL)


def wait_ready(folder: ClusterDir, before: Sequence[ProcessState], deadline: float) -> list[ProcessState]:
    """The processes that replace ``before``, once all of them are ready; raises :class:`UserError` (exit code 1)."""
    while True:
        state = folder.load()
        if state is None or state.phase in ENDED or is_stale(state):
            raise UserError(why_down(state) if state else f"cluster '{folder.name}' is gone", exit_code=1)
        now = [find(state, one.name) for one in before]
        late = [
            fresh
            for fresh, old in zip(now, before, strict=True)
            if fresh.restarts == old.restarts or fresh.phase is not Phase.READY
        ]
        if not late:
            return now
        if time.monotonic() > deadline:
            what = ", ".join(f"{one.name} ({one.phase.value}, log {one.log})" for one in late)
            raise UserError(f"not ready in time: {what}", exit_code=1)
        time.sleep(POLL_S)


def wait_served(folder: ClusterDir, servers: Sequence[ProcessState], deadline: float) -> None:
    """Until the gateway sends requests to every one of ``servers``; raises :class:`UserError` (exit code 1)."""
    urls = [one.url for one in servers if one.role != "gateway"]
    while True:
        answer = probe.workers(running(folder).gateway.port)
        served = registered(answer, urls) if answer is not None else []
        if len(served) == len(urls):
            return
        if time.monotonic() > deadline:
            late = ", ".join(one.name for one in servers if one.url not in served)
            raise UserError(f"ready, but the gateway does not send requests to: {late}", exit_code=1)
        time.sleep(POLL_S)
