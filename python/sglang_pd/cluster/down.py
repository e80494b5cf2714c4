"""Stop a cluster from outside its supervisor, and prove that nothing of it is left."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from sglang_pd.cluster.phases import ENDED
from sglang_pd.cluster.plan import Plan
from sglang_pd.cluster.ports import holder, listening
from sglang_pd.cluster.procfs import Stat, alive, members, send, table
from sglang_pd.cluster.state import ClusterDir, ClusterState, clusters_home, is_stale
from sglang_pd.cluster.stopping import KILL_WAIT_S, POLL_S, StopResult, stop_trees
from sglang_pd.errors import UserError


@dataclass(frozen=True)
class Stopped:
    """``trees``: what ran of each process before. ``stale``: the supervisor was gone already."""

    trees: dict[str, list[Stat]]
    stale: bool


def patience(plan: Plan | None) -> float:
    """Seconds that a supervisor may take to stop everything."""
    return (plan.grace_s if plan else Plan.grace_s) + KILL_WAIT_S + 5.0


def sweep(state: ClusterState, grace_s: float) -> StopResult:
    """Stop what a supervisor left behind that was killed. Normally the kernel has done it already."""
    return stop_trees([one.identity for one in state.processes if one.identity], grace_s)


def stop(folder: ClusterDir) -> Stopped:
    """Stop the cluster of ``folder``.

    Raises :class:`UserError`: exit code 2 where there is none, 1 where a process or a listening port is left.
    """
    state = folder.load()
    if state is None or state.phase in ENDED:
        if folder.is_locked():
            raise UserError(f"cluster '{folder.name}' is only being started or just ending; try again", exit_code=1)
        raise UserError(f"no cluster '{folder.name}' to stop{_others()}")
    before = trees(state)
    stale = is_stale(state)
    if not stale:
        _end_supervisor(state, patience(folder.load_plan()))
    # Where the supervisor did its work this finds nothing.
    result = sweep(state, Plan.grace_s if stale else 0.0)
    left = [one for tree in before.values() for one in tree if alive(one.identity)] + list(result.left)
    if left:
        names = ", ".join(f"{one.name} (pid {one.pid})" for one in left)
        raise UserError(f"cluster '{folder.name}': these processes could not be stopped: {names}", exit_code=1)
    held = listening(state.ports)
    if held:
        names = ", ".join(f"{port} ({holder(port) or 'by a process that cannot be seen'})" for port in held)
        raise UserError(f"cluster '{folder.name}': these ports are still listened on: {names}", exit_code=1)
    last = folder.load()
    if last is not None and last.phase not in ENDED:
        # Its supervisor did not live to say how it ended. Where it did, a foreground `up` still reads that.
        folder.forget()
    return Stopped(before, stale)


def trees(state: ClusterState) -> dict[str, list[Stat]]:
    """The running processes of each process of the cluster, by its name."""
    processes = table()
    return {one.name: members(one.identity, processes) if one.identity else [] for one in state.processes}


def _end_supervisor(state: ClusterState, patience_s: float) -> None:
    send(state.supervisor, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while alive(state.supervisor) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if alive(state.supervisor):
        send(state.supervisor, signal.SIGKILL)


def _others() -> str:
    home = clusters_home()
    folders = [ClusterDir(path) for path in sorted(home.iterdir()) if path.is_dir()] if home.is_dir() else []
    names = [one.name for one in folders if one.is_locked()]
    return f"; up are: {', '.join(names)} (choose with --name)" if names else "; none is up"
