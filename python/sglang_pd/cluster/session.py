"""One ``up``: start the supervisor, show what it does, stay with it or leave it running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from sglang_pd.cluster import ask, down
from sglang_pd.cluster.display import Display
from sglang_pd.cluster.logs import tail
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.plan import LOOPBACK, Plan
from sglang_pd.cluster.state import ClusterDir, ClusterState, Failure, is_stale
from sglang_pd.cluster.words import failure_text, ready_text, why_down

POLL_S = 0.1
INTERRUPTED = 130


def start_supervisor(folder: ClusterDir, plan: Plan, lock: int, detach: bool) -> subprocess.Popen[bytes]:
    """Start the supervisor of ``plan``, which must be saved in ``folder``; it takes over the lock.

    It leads a session of its own, so that Ctrl-C reaches only us. Unless detached, it stops the cluster when we end,
    however we end.
    """
    argv = [sys.executable, "-m", "sglang_pd.cluster.supervise", str(folder.path), "--lock-fd", str(lock)]
    if not detach:
        argv += ["--with-parent", str(os.getpid())]
    with folder.supervisor_log.open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(lock,)
        )
    os.close(lock)
    return process


def run(folder: ClusterDir, plan: Plan, lock: int, detach: bool, display: Display, question: str | None = None) -> int:
    """Start ``plan`` and show it until it is ready; then leave it (``detach``) or stay until it ends.

    With a ``question``, ask it when it is ready and show the answer.

    Returns 0 when it is ready and was left, or was stopped by ``down``; 1 when something failed and the rest was
    stopped; 130 when it was interrupted and stopped. Ctrl-C and SIGTERM stop it, a second one without grace.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    folder.forget()
    supervisor = start_supervisor(folder, plan, lock, detach)
    try:
        with display:
            ready = _until_ready(folder, supervisor, display)
        if ready is not None:
            print(ready_text(ready, detach), flush=True)
            if question:
                ask.show(LOOPBACK, ready.gateway.port, ready.served_model_name, question)
            if detach:
                return 0
            supervisor.wait()
    except KeyboardInterrupt:
        return _interrupted(folder, plan, supervisor)
    return _ended(folder, plan)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _until_ready(folder: ClusterDir, supervisor: subprocess.Popen[bytes], display: Display) -> ClusterState | None:
    """Show the state until it is ready; None where the supervisor ended instead."""
    while True:
        # Asked before the state is read: what it wrote last is then seen.
        ended = supervisor.poll() is not None
        state = folder.load()
        if state is not None:
            display.show(state)
            if state.phase is Phase.READY:
                return state
        if ended:
            return None
        time.sleep(POLL_S)


def _interrupted(folder: ClusterDir, plan: Plan, supervisor: subprocess.Popen[bytes]) -> int:
    print("Stopping; once more to stop at once.", file=sys.stderr, flush=True)
    supervisor.terminate()
    deadline = time.monotonic() + down.patience(plan)
    while supervisor.poll() is None:
        try:
            supervisor.wait(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            supervisor.terminate()
        except subprocess.TimeoutExpired:
            supervisor.kill()
    code = _ended(folder, plan)
    return code or INTERRUPTED


def _ended(folder: ClusterDir, plan: Plan) -> int:
    """Say how it ended; the supervisor is gone. Returns 0 for a clean stop, else 1."""
    state = folder.load()
    if state is not None and is_stale(state):
        down.sweep(state, plan.grace_s)
        folder.forget()
        state = None
    if state is None:
        lost = Failure(
            "supervisor", "ended without stopping the cluster; it was cleaned up", str(folder.supervisor_log)
        )
        print(failure_text(lost, tail(folder.supervisor_log)), file=sys.stderr)
        return 1
    if state.failure is not None:
        print(why_down(state), file=sys.stderr)
        print("Everything else was stopped.", file=sys.stderr)
        return 1
    print(f"Cluster '{state.name}' is stopped.", file=sys.stderr)
    return 0
