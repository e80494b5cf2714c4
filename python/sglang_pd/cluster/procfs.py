"""Processes as the kernel shows them: who is who, who belongs to whom, and signals that cannot hit a stranger."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
# Looked up at import: between fork and exec nothing should be left to load.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True)
class Identity:
    """A process that no later one with the same pid can be taken for. ``started``: clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True)
class Stat:
    """What ``/proc/PID/stat`` says, as far as we use it."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    threads: int
    started: int

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.started)

    @property
    def runs(self) -> bool:
        """False for a zombie: it has ended, and only its parent has not asked yet.

        One whose main thread alone has ended is shown as a zombie too; its other threads still hold its ports.
        """
        return self.state not in "ZX" or self.threads > 1


def parse_stat(text: str) -> Stat:
    """Parse one line of ``/proc/PID/stat`` (see proc(5)); the name is in parentheses and may hold anything."""
    pid, _, rest = text.partition(" (")
    name, _, fields = rest.rpartition(") ")
    field = fields.split()
    return Stat(int(pid), name, field[0], int(field[1]), int(field[3]), int(field[17]), int(field[19]))


def stat(pid: int) -> Stat | None:
    """The process with this pid, or None where there is none."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def table() -> list[Stat]:
    """Every process of this machine that we may see."""
    found = (stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return [one for one in found if one is not None]


def identify(pid: int) -> Identity | None:
    one = stat(pid)
    return one.identity if one else None


def alive(process: Identity | None) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    if process is None:
        return False
    one = stat(process.pid)
    return one is not None and one.started == process.started and one.runs


def age_s(process: Identity) -> float:
    """Seconds since the process started, by the clock that its start was read from: no set clock changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / os.sysconf("SC_CLK_TCK")


def members(root: Identity, processes: Iterable[Stat]) -> list[Stat]:
    """The running processes that belong to ``root``, itself included, out of ``processes``.

    They are its descendants and the members of its session. The session finds those whose parent has died already; the
    kernel gives its number to no new process while a member lives.
    """
    chosen: dict[int, Stat] = {}
    rest = [one for one in processes if one.started >= root.started]
    if any(one.pid == root.pid and one.identity != root for one in rest):
        return []  # the pid was given anew, so nothing of the old session is left
    while True:
        new = [
            one
            for one in rest
            if one.pid not in chosen
            and (one.identity == root or one.session == root.pid or one.parent in chosen or one.parent == root.pid)
        ]
        if not new:
            return [one for one in chosen.values() if one.runs]
        chosen.update((one.pid, one) for one in new)


def send(process: Identity, number: signal.Signals) -> bool:
    """Signal that very process; returns False where it is gone.

    The pid file descriptor is opened before the identity is compared, so a pid that is given anew in between is safe.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when ``parent`` ends, kill -9 included.

    To be called in the child. Exits at once where the parent is gone already: its end would not be noticed any more.
    """
    if _prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)
