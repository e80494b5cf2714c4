"""Stop, continue and kill a process, and know when that has happened: a signal that was sent has not arrived yet."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 5.0


def state(pid: int) -> str:
    """The letter of ``/proc``: R, S, D, T (stopped), Z (ended, not waited for); "gone" where there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def stop(pid: int) -> None:
    """Every thread stands still when this returns; raises ``TimeoutError``."""
    os.kill(pid, signal.SIGSTOP)
    _until(pid, {"T"})


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """Every thread has ended, and so all sockets are closed, when this returns; raises ``TimeoutError``."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        # Readable once the last thread is gone; the first one is a zombie before that.
        if not select.select([handle], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"process {pid} has not ended after {PATIENCE_S:g} s")
    finally:
        os.close(handle)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            go_on(pid)


def _until(pid: int, states: set[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := state(pid)) not in states:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} is {found}, not {states}, after {PATIENCE_S:g} s")
        time.sleep(0.001)
