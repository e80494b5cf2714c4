"""The supervisor's side of :mod:`sglang_pd.cluster.preload`."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_pd import environ
from sglang_pd.cluster import procfs
from sglang_pd.cluster.launcher import SubprocessLauncher, describe_exit
from sglang_pd.cluster.procfs import Identity
from sglang_pd.cpu.settings import PASSIVE_THREADS

# A BLAS that starts its threads at import would make the preload process unsafe to fork. Servers compute with torch.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def is_server(argv: Sequence[str]) -> bool:
    """Whether this starts a server of upstream's, which is what the preload process has imported."""
    return list(argv[:2]) == ["-m", "sglang.launch_server"]


class PreloadLauncher:
    """Servers are forked from one process that has imported what they import; anything else is a new interpreter.

    ``log``: where the preload process writes. It starts at once and is ready some seconds later.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._plain = SubprocessLauncher()
        self._channel, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        argv = ["-m", "sglang_pd.cluster.preload", str(theirs.fileno())]
        passive = {name: value for name, value in PASSIVE_THREADS.items() if environ.upstream(name) is None}
        self._preload = self._plain.start("preload", argv, log, {**ONE_THREAD, **passive}, keep=(theirs.fileno(),))
        theirs.close()
        self._ready = False
        self._gone: str | None = None
        self._pending = b""
        self._pids: list[int] = []
        self._codes: dict[int, int] = {}

    @property
    def preload(self) -> Identity | None:
        return procfs.identify(self._preload)

    def can_start(self, argv: list[str]) -> bool:
        if not is_server(argv):
            return True
        self._receive(0.0)
        self._refuse_if_gone()
        return self._ready

    def start(self, name: str, argv: list[str], log: Path, env: dict[str, str]) -> int:
        if not is_server(argv):
            return self._plain.start(name, argv, log, env)
        message = {"argv": argv, "log": str(log), "env": env}
        self._channel.sendall(json.dumps(message).encode() + b"\n")
        while not self._pids:
            self._refuse_if_gone()
            self._receive(None)
        pid = self._pids.pop()
        self._codes.pop(pid, None)  # of an earlier process with this number
        return pid

    def ended(self, pid: int) -> str | None:
        if self._plain.knows(pid):
            return self._plain.ended(pid)
        self._receive(0.0)
        if pid in self._codes:
            return describe_exit(self._codes[pid])
        # The kernel kills what a preload process had forked when that ends.
        return f"with the preload process ({self._gone})" if self._gone else None

    def close(self) -> None:
        self._channel.close()
        self._plain.kill(self._preload)

    def _refuse_if_gone(self) -> None:
        if self._gone:
            raise ChildProcessError(f"the process that imports for all servers ended ({self._gone}); see {self._log}")

    def _receive(self, timeout: float | None) -> None:
        """Take in what the preload process has said, its end included; with None wait until it says something."""
        while self._gone is None and select.select([self._channel], [], [], timeout)[0]:
            data = self._channel.recv(65536)
            if not data:
                self._gone = self._plain.wait(self._preload)
                return
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            timeout = 0.0

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready = True
        elif "code" in message:
            self._codes[message["pid"]] = message["code"]
        else:
            self._pids.append(message["pid"])
