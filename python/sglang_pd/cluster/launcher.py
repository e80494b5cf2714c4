"""How a process of a cluster comes into being, behind an interface as small as it can be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from sglang_pd import environ
from sglang_pd.cluster import gpus
from sglang_pd.cluster.procfs import Identity, die_with_parent


class Launcher(Protocol):
    """Starts processes for one supervisor.

    Every process it starts leads a session of its own (``setsid``), which is how its helpers are found after it died,
    and dies with the supervisor, even if that is killed with -9.
    """

    @property
    def preload(self) -> Identity | None:
        """The process that the servers are forked from, where there is one."""
        ...

    def can_start(self, argv: list[str]) -> bool:
        """Whether ``start`` would start this now. Raises ``OSError`` where it never will."""
        ...

    def start(self, name: str, argv: list[str], log: Path, env: dict[str, str]) -> int:
        """Start ``python *argv`` with output to ``log`` and ``env`` added to the environment; returns its pid.

        Called from the supervisor's main thread only. Raises ``OSError`` where it cannot be started.
        """
        ...

    def ended(self, pid: int) -> str | None:
        """How a started process ended, for people ("exit code 1"); None while it runs. Takes its zombie away."""
        ...

    def close(self) -> None:
        """Let go of what the launcher itself holds, after every process has been stopped."""
        ...


class SubprocessLauncher:
    """Each process is a new interpreter."""

    def __init__(self) -> None:
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def preload(self) -> Identity | None:
        return None

    def can_start(self, argv: list[str]) -> bool:
        return True

    def start(self, name: str, argv: list[str], log: Path, env: dict[str, str], keep: tuple[int, ...] = ()) -> int:
        """As :meth:`Launcher.start`; ``keep`` are open file descriptors to hand on."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ.handed_on(env),
                pass_fds=keep,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
            )
        self._started[process.pid] = process
        return process.pid

    def ended(self, pid: int) -> str | None:
        code = self._started[pid].poll()
        return None if code is None else describe_exit(code)

    def knows(self, pid: int) -> bool:
        return pid in self._started

    def wait(self, pid: int) -> str:
        """Wait for the end of a started process; how it ended, in words."""
        return describe_exit(self._started[pid].wait())

    def kill(self, pid: int) -> None:
        """End a started process at once; nothing happens where it has ended."""
        self._started[pid].kill()
        self._started[pid].wait()

    def close(self) -> None:
        """Nothing is held."""


def describe_exit(code: int) -> str:
    """An exit code as ``subprocess`` gives it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def create(argvs: Iterable[Sequence[str]], log: Path) -> Launcher:
    """The launcher for these processes: with no GPU here, and unless switched off, one that imports once for all.

    ``log``: where the preload process writes. Raises :class:`sglang_pd.environ.EnvError` for a bad value.
    """
    from sglang_pd.cluster.preload_launcher import PreloadLauncher, is_server

    if environ.envs.SGLANG_PD_PRELOAD.get() and gpus.visible() == 0 and any(map(is_server, argvs)):
        return PreloadLauncher(log)
    return SubprocessLauncher()
