"""A cluster of fake servers and a fake gateway, driven by the real `up`, `down` and `status`."""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from harness import cluster_fakes as fakes
from sglang_pd.cluster import commands
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.plan import Plan
from sglang_pd.cluster.procfs import Stat, alive, table
from sglang_pd.cluster.state import ClusterDir, ClusterState
from sglang_pd.errors import UserError

HERE = Path(__file__).parent
PATIENCE_S = 30.0


def eventually(condition: Callable[[], object], what: str) -> object:
    """Wait until ``condition`` gives something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Cluster:
    """A cluster of fakes, and the ``up`` that runs it."""

    def __init__(self, home: Path):
        self.home = home
        self.folder = ClusterDir(home / "clusters" / "c")
        self._ups: list[subprocess.Popen[str]] = []

    def up(self, plan: Plan, *flags: str) -> subprocess.Popen[str]:
        os.close(self.folder.lock())
        self.folder.save_plan(plan)
        argv = [sys.executable, str(HERE / "cluster_up_fakes.py"), str(self.folder.path), *flags]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._ups.append(process)
        return process

    def command(self, *argv: str) -> Done:
        """Run ``sglang-pd *argv`` in this process (those that return; ``up`` is for bad input only)."""
        parser = argparse.ArgumentParser()
        commands.add_parsers(parser.add_subparsers(required=True))
        args = parser.parse_args(argv)
        with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
            try:
                code = args.run(args)
            except UserError as error:
                print(error, file=stderr)
                code = error.exit_code
        return Done(code, stdout.getvalue(), stderr.getvalue())

    def wait_for_line(self, up: subprocess.Popen[str], text: str) -> str:
        """Read what ``up`` prints until a line holds ``text``; returns all of it."""
        assert up.stdout is not None
        read = ""
        while text not in read:
            line = up.stdout.readline()
            assert line, f"{text!r} is not in {read}"
            read += line
        return read

    def ready(self) -> ClusterState:
        def look() -> ClusterState | None:
            state = self.folder.load()
            return state if state and state.phase is Phase.READY else None

        state = eventually(look, "the cluster is ready")
        assert isinstance(state, ClusterState)
        return state

    def processes(self) -> list[Stat]:
        """Every running process that works for this cluster: its command line names our fakes or our folder."""
        marks = (str(self.folder.path).encode(), fakes.__file__.encode())
        out = []
        for one in table():
            try:
                command = Path(f"/proc/{one.pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if one.runs and any(mark in command for mark in marks):
                out.append(one)
        return out

    def gone(self) -> None:
        eventually(lambda: not self.processes(), f"no process is left of {self.processes()}")

    def close(self) -> None:
        for one in self._ups:
            if one.poll() is None:
                one.kill()
            one.communicate()
        for process in self.processes():
            if alive(process.identity):
                os.kill(process.pid, signal.SIGKILL)
