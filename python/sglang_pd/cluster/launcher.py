"""How a process of a cluster comes into being, behind an interface as small as it can be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Protocol

from sglang_pd.cluster.procfs import die_with_parent


class Launcher(Protocol):
    """Starts processes for one supervisor.

    Every process it starts leads a session of its own (``setsid``), which is how its helpers are found after it died,
    and dies with the supervisor, even if that is killed with -9.
    """

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

    def start(self, name: str, argv: list[str], log: Path, env: dict[str, str]) -> int:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Handed on, not read: what is set here belongs to the process that is started.
                env={**os.environ, **env},
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
            )
        self._started[process.pid] = process
        return process.pid

    def ended(self, pid: int) -> str | None:
        code = self._started[pid].poll()
        return None if code is None else describe_exit(code)

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


def create() -> Launcher:
    """The launcher that a supervisor uses."""
    return SubprocessLauncher()
