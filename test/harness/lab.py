"""Upstream's real classes with our hooks live, on CPU tensors, kernels in Triton's interpreter: one call, one process.

Hooks stay for the life of a process, and whether triton interprets is decided when it is imported, so neither can be
had in the process of the tests. A lab is a process that has imported everything once, and forks of it in which plugins
were loaded as in a server, with bf16 index keys and without, with our sparse decode and without; each call runs in a
fork of one of these.

with Lab() as lab:
    lab.call("harness.dsv4.pools:index_pool", on=True)
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 240
CALL_TIMEOUT_S = 120
PR_SET_PDEATHSIG = 1
VARIABLE = "SGLANG_DSV4_BF16_INDEX_K"
ATTENTION = "SGLANG_SM120_FLASHMLA_BACKEND"
# Bf16 index keys on, our sparse decode on.
VARIANTS = tuple(itertools.product((False, True), repeat=2))


class LabError(RuntimeError):
    """What the call raised, as ``Type: text``; the traceback is in ``trace``."""

    def __init__(self, text: str, trace: str):
        super().__init__(text)
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.args[0]}\n{self.trace}"


class Lab:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lab-")
        self._addresses = {(on, mma): str(Path(self._folder.name) / f"on-{int(on)}-{int(mma)}") for on, mma in VARIANTS}
        ours = (VARIABLE, "SGLANG_SM120_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.lab", *self._addresses.values()], cwd=self._folder.name, env=environment
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(map(os.path.exists, self._addresses.values())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the lab is not there: {self._process.poll()}")
            time.sleep(0.05)

    def call(self, function: str, *args: Any, on: bool, mma: bool = False, **environment: str) -> Any:
        """``module:function`` with ``args``, in a process of its own; ``on``: with ``SGLANG_DSV4_BF16_INDEX_K=1``;
        ``mma``: with ``SGLANG_SM120_FLASHMLA_BACKEND=mma``; ``environment``: further variables, set before the call.

        Raises :class:`LabError` with what it raised, ``TimeoutError``.
        """
        with contextlib.closing(Client(self._addresses[on, mma])) as connection:
            connection.send((function, args, environment))
            if not connection.poll(CALL_TIMEOUT_S):
                raise TimeoutError(f"{function} takes more than {CALL_TIMEOUT_S} s")
            ok, value = connection.recv()
        if not ok:
            raise LabError(*value)
        return value

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()


def _serve(connection: Connection) -> None:
    function, args, environment = connection.recv()
    os.environ.update(environment)
    try:
        module, _, name = function.partition(":")
        result = getattr(importlib.import_module(module), name)(*args)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (it goes to the caller, who raises it)
        connection.send((False, (f"{type(error).__name__}: {error}", traceback.format_exc())))
    else:
        connection.send((True, result))


def _import_once() -> None:
    import torch

    torch.set_num_threads(1)
    import sglang.srt.layers.attention.deepseek_v4_backend
    import sglang.srt.layers.attention.dsv4.compressor_v2
    import sglang.srt.server_args  # noqa: F401

    from sglang_pd import hooks, upstream

    # What attaching the hooks reads and imports is there in both.
    upstream.broken((row.target, row.recorded) for row in hooks.HOOKS)
    for row in hooks.HOOKS:
        row.load()
        if row.kind != "resolution":
            pkgutil.resolve_name(row.target)


def _main(*addresses: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _import_once()
    for address, (on, mma) in zip(addresses, VARIANTS, strict=True):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            os.environ[VARIABLE] = str(int(on))
            if mma:
                os.environ[ATTENTION] = "mma"
            _listen(address)
    signal.pause()


def _listen(address: str) -> None:
    """Load plugins as a server does, then run each call in a fork."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = Listener(address)
    while True:
        connection = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(connection)
            os._exit(0)
        connection.close()


if __name__ == "__main__":
    _main(*sys.argv[1:])
