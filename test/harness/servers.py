"""Real servers for end-to-end tests: an undivided server, and clusters by the command a user types."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from sglang_pd.cluster.ports import listening
from sglang_pd.cluster.preload_launcher import PreloadLauncher

BIN = Path(sys.executable).parent
READY_TIMEOUT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str, timeout: float = 10) -> Any:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def post(url: str, body: dict, timeout: float = 120) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def run(*argv: str, home: Path, timeout: float = READY_TIMEOUT_S, **env: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, as a user runs it."""
    return subprocess.run(
        [str(BIN / argv[0]), *argv[1:]],
        env={**os.environ, "SGLANG_PD_HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@contextlib.contextmanager
def undivided(model: Path, log: Path, *flags: str) -> Iterator[str]:
    """An undivided server by upstream's newer spelling; yields its URL once it is healthy."""
    port = free_port()
    argv = [str(BIN / "sglang"), "serve", "--model-path", str(model), "--port", str(port), *flags]
    with log.open("wb") as output:
        server = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not healthy(url):
            assert server.poll() is None, f"the server ended:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"not healthy in time:\n{log.read_text()[-3000:]}"
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class Preloaded:
    """Runs ``python -m sglang.launch_server`` to its end, forked from a preload process: a second instead of twenty."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._launcher = PreloadLauncher(folder / "preload.log")

    def __enter__(self) -> Preloaded:
        return self

    def __exit__(self, *exc: object) -> None:
        self._launcher.close()

    def launch(self, *flags: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the server; one that stays is killed and fails the test."""
        argv = ["-m", "sglang.launch_server", *map(str, flags)]
        log = self._folder / f"{uuid.uuid4()}.log"
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._launcher.can_start(argv):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pid = self._launcher.start("server", argv, log, {})
        deadline = time.monotonic() + timeout
        while (how := self._launcher.ended(pid)) is None:
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                raise AssertionError(f"the server did not end:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        code = re.fullmatch(r"exit code (\d+)", how)
        return subprocess.CompletedProcess(argv, int(code[1]) if code else -1, log.read_text())


def runs(process: psutil.Process) -> bool:
    """False for a zombie too: it has ended, and only its parent has not asked yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Cluster:
    """A running local cluster: what ``up`` printed, and what ``sglang-pd status --json`` says."""

    def __init__(self, home: Path, name: str, up: str):
        self.home, self.name, self.up = home, name, up

    @property
    def status(self) -> dict:
        return json.loads(run("sglang-pd", "status", "--name", self.name, "--json", home=self.home).stdout)

    @property
    def gateway(self) -> str:
        return self.status["url"]

    def log(self, name: str) -> str:
        return Path(next(one["log"] for one in self.status["processes"] if one["name"] == name)).read_text()


@contextlib.contextmanager
def cluster(home: Path, name: str, *flags: str, **env: str) -> Iterator[Cluster]:
    """``sglang-pd up --detach`` ... ``sglang-pd down``, and the proof that nothing of it is left."""
    up = run("sglang-pd", "up", "--detach", "--name", name, *flags, home=home, **env)
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        started = Cluster(home, name, up.stdout)
        processes = [
            child
            for one in started.status["processes"]
            for child in [psutil.Process(one["pid"]), *psutil.Process(one["pid"]).children(recursive=True)]
        ]
        ports = [one["port"] for one in started.status["processes"]]
        yield started
    finally:
        down = run("sglang-pd", "down", "--name", name, home=home)
    assert down.returncode == 0, down.stdout + down.stderr
    assert not [process for process in processes if runs(process)]
    assert not listening(ports)
