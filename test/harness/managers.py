"""PD pairs at manager level: each role a process of its own, forked from one that has imported everything once.

with Nursery() as nursery:
    pair = Pair(nursery)
    pair.transfer(room=1)
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import zmq

from harness.roles import RoleSpec
from harness.servers import free_port

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)
# UCX over a socket: faults on it look like those on a network, where shared memory hides them.
TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
UPSTREAM = {"SGLANG_PD_RELIABLE": "0"}
IMPORT_TIMEOUT_S = 240
PR_SET_PDEATHSIG = 1


class RoleProcess:
    """A role in another process: its methods are those of :class:`~.roles.Role`."""

    def __init__(self, connection: Connection, spec: RoleSpec):
        self._connection = connection
        self.spec = spec
        connection.send(spec)
        self.pid: int = self._answer()
        self.info: dict[str, Any] = self.call("info")
        self.address = f"tcp://{self.info['ip']}:{self.info['port']}"

    def call(self, method: str, *args: Any) -> Any:
        """The method's result; raises ``RuntimeError`` with the other side's error, ``TimeoutError`` after 60 s."""
        self._connection.send((method, args))
        return self._answer()

    def _answer(self) -> Any:
        if not self._connection.poll(60):
            raise TimeoutError(f"no answer from the {self.spec.mode} process")
        ok, value = self._connection.recv()
        if not ok:
            raise RuntimeError(value)
        return value

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def leave(self) -> None:
        """Return from the process's main thread, as a server does on SIGTERM; it ends when no thread holds it."""
        self._connection.send(None)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._connection.close()


class Nursery:
    """The process that roles are forked from, and the roles it made; ``environment`` goes into every role."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = environment or {}
        self._folder = tempfile.TemporaryDirectory(prefix="nursery-")
        address = Path(self._folder.name) / "socket"
        root = Path(__file__).parents[2]
        folders = os.pathsep.join(str(root / folder) for folder in ("test", "benchmark"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.managers", str(address)],
            cwd=self._folder.name,
            env={
                **os.environ,
                "PYTHONPATH": folders,
                "OMP_NUM_THREADS": "1",
                "SGLANG_HOST_IP": "127.0.0.1",
                "SGLANG_PD_STALL_DIR": str(Path(self._folder.name) / "stalls"),
            },
        )
        deadline = time.monotonic() + IMPORT_TIMEOUT_S
        while not address.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the process that forks roles is not there: {self._process.poll()}")
            time.sleep(0.05)
        self._address = str(address)
        self._roles: list[RoleProcess] = []

    def start(self, spec: RoleSpec) -> RoleProcess:
        spec = replace(spec, environment={**spec.environment, **self._environment})
        role = RoleProcess(Client(self._address), spec)
        self._roles.append(role)
        return role

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *error: object) -> None:
        for role in self._roles:
            role.close()
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()


class Pair:
    """A prefill and a decode; ``prefill`` and ``decode`` are environments of theirs alone."""

    def __init__(
        self, nursery: Nursery, prefill: dict[str, str] | None = None, decode: dict[str, str] | None = None, **both: str
    ):
        self._nursery = nursery
        self._port = free_port()
        self.prefill = nursery.start(RoleSpec("prefill", self._port, {**both, **(prefill or {})}))
        self.decode = self.add_decode({**both, **(decode or {})})
        self._rooms = itertools.count(1000)

    def add_decode(self, environment: dict[str, str]) -> RoleProcess:
        return self._nursery.start(RoleSpec("decode", self._port, environment))

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()

    def room(self) -> int:
        return next(self._rooms)

    def open(self, room: int, pages: int = 8, decode: RoleProcess | None = None) -> list[int]:
        """Both sides open the room and decode tells where to write; returns its pages there."""
        decode = decode or self.decode
        self.prefill.call("open", room)
        decode.call("open", room)
        where = [(room * 17 + 3 * i) % decode.spec.pages for i in range(pages)]
        decode.call("send_metadata", room, where, room % decode.spec.aux_slots)
        return where

    def transfer(self, room: int | None = None, pages: int = 8, decode: RoleProcess | None = None) -> float:
        """A room from start to end, its bytes verified; returns the seconds it took. Fails after 10 s per phase."""
        decode, room = decode or self.decode, room or self.room()
        source, slot = list(range(pages)), room % decode.spec.aux_slots
        self.prefill.call("fill", source, slot, room)
        start = time.monotonic()
        where = self.open(room, pages, decode)
        assert self.prefill.call("wait", room, [WAITING, FAILED], 10.0)[0] == WAITING
        self.prefill.call("send", room, source, slot)
        assert decode.call("wait", room, [SUCCESS, FAILED], 10.0)[0] == SUCCESS
        assert self.prefill.call("wait", room, [SUCCESS, FAILED], 10.0)[0] == SUCCESS
        seconds = time.monotonic() - start
        assert decode.call("content", where, slot) == self.prefill.call("content", source, slot)
        for role in (self.prefill, decode):
            role.call("clear", room)
        return seconds


def send_frames(address: str, *messages: list[bytes]) -> None:
    """Push messages to a control port as a stranger would."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        for frames in messages:
            socket.send_multipart(frames)
        socket.close(linger=2000)


def _serve(connection: Connection) -> None:
    """The life of a role's process: build it, answer calls, leave when the test does."""
    role: Any = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            os._exit(0)
        if message is None:
            return
        try:
            if role is None:
                role, result = message.build(), os.getpid()
            else:
                method, args = message
                result = getattr(role, method)(*args)
        except Exception as error:  # noqa: BLE001 (it goes to the caller, who raises it)
            connection.send((False, f"{type(error).__name__}: {error}"))
        else:
            connection.send((True, result))


def _main(address: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    import sglang.srt.disaggregation.nixl.conn
    import sglang.srt.disaggregation.prefill  # noqa: F401
    from sglang.srt.plugins import load_plugins

    load_plugins()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = Listener(address)
    while True:
        connection = listener.accept()
        if os.fork() == 0:
            # Whatever it does by then, stopped or half built: a role does not outlive the test.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener._listener._socket.close()  # type: ignore[attr-defined]
            _serve(connection)
            sys.exit()
        connection.close()


if __name__ == "__main__":
    _main(sys.argv[1])
