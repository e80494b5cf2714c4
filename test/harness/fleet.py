"""Real prefill and decode servers, each started, signalled and replaced on its own; no supervisor stops the others.

with Fleet(folder, model, decodes=2) as fleet:
    answer = fleet.hand_over(ids)
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import zmq

from harness.faults import signals
from harness.servers import READY_TIMEOUT_S, free_port, get, runs
from sglang_pd.cluster import ports, probe
from sglang_pd.cluster.plan import GATEWAY_BREAKER, GATEWAY_HEALTH, GATEWAY_POLICY, GATEWAY_RETRY
from sglang_pd.cluster.preload_launcher import PreloadLauncher
from sglang_pd.ready import PATH

HOST = "127.0.0.1"
# On one host UCX would complete a write by shared memory within the call that posts it; a fault needs time to meet it.
TCP = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
UPSTREAM = {"SGLANG_PD_RELIABLE": "0"}
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """A server's answer to one request. ``status`` is None where it broke off; ``seconds`` from its sending to the
    monotonic time ``at``."""

    status: int | None
    text: str
    seconds: float
    at: float

    @property
    def output_ids(self) -> list[int]:
        return json.loads(self.text)["output_ids"]


def ask(url: str, body: Mapping[str, Any], timeout: float = 120) -> Answer:
    """POST; an answer in any case, unless nobody answers within ``timeout`` seconds: ``TimeoutError``."""
    start = time.monotonic()
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    status: int | None
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        status, text = None, f"{type(error).__name__}: {error}"
    end = time.monotonic()
    return Answer(status, text, end - start, end)


@dataclass
class Server:
    """One running server. ``flags`` and ``env`` are what it is started with again by :meth:`Fleet.replace`."""

    name: str
    role: str
    port: int
    bootstrap_port: int | None
    log: Path
    flags: tuple[str, ...]
    env: dict[str, str]
    pid: int = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def processes(self) -> list[psutil.Process]:
        """The server and its helpers, of those that run."""
        try:
            main = psutil.Process(self.pid)
            return [one for one in (main, *main.children(recursive=True)) if runs(one)]
        except psutil.NoSuchProcess:
            return []

    @property
    def schedulers(self) -> list[psutil.Process]:
        return [one for one in self.processes if one.cmdline()[0].startswith("sglang::scheduler")]

    def ready(self, timeout: float = 10) -> tuple[int | None, dict[str, Any]]:
        """Status and body of ``/pd/ready``; (None, {}) where nobody answers."""
        try:
            with urllib.request.urlopen(self.url + PATH, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if error.headers.get_content_type() == "application/json" else {}
        except (OSError, http.client.HTTPException):
            return None, {}

    def rooms(self, **wanted: Any) -> list[dict[str, Any]]:
        """What those of its ranks that answer list on ``/pd/rooms``; ``wanted`` are its parameters."""
        ranks = get(f"{self.url}/pd/rooms?{urllib.parse.urlencode(wanted)}")["ranks"]
        return [room for rank in ranks for room in (rank["said"] or {}).get("rooms") or []]

    def wait_entered(self, room: int, phase: str) -> None:
        """Until this room is in the phase, or has been. Raises ``AssertionError`` after :data:`PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(step["phase"] == phase for one in self.rooms(room=room) for step in one["timeline"]):
            assert time.monotonic() < deadline, f"{self.name}: room {room} is not {phase} after {PATIENCE_S:g} s"
            time.sleep(0.01)

    def rank_address(self, rank: int = 0) -> tuple[str, int]:
        """Where a prefill rank hears its control messages; its bootstrap server tells."""
        query = f"prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank={rank}&target_pp_rank=0"
        found = get(f"http://{HOST}:{self.bootstrap_port}/route?{query}")
        return found["rank_ip"], int(found["rank_port"])

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return answer.read().decode()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def failed_rooms(self) -> list[str]:
        """Its lines of failed rooms so far."""
        return re.findall(r"PD room failed: .*", self.read_log())

    def cpu_seconds(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Every process of it stands still."""
        with contextlib.ExitStack() as stack:
            for one in self.processes:
                stack.enter_context(signals.stopped(one.pid))
            yield


@dataclass
class Fleet:
    """``prefills`` and ``decodes`` servers of ``model``, forked from one preload process; all of them ready on entry.

    ``flags`` go to every server, ``env`` is added to the environment of every one. Raises ``AssertionError`` where one
    does not get ready.
    """

    folder: Path
    model: Path
    prefills: int = 1
    decodes: int = 1
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)

    def __enter__(self) -> Fleet:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._launcher = PreloadLauncher(self.folder / "preload.log")
        self._dice = random.Random(1)
        self._ports = ports.PortPicker()
        try:
            for role, count in (("prefill", self.prefills), ("decode", self.decodes)):
                for number in range(count):
                    bootstrap = free_port() if role == "prefill" else None
                    log = self.folder / f"{role}-{number}.log"
                    port = self._ports.pick_server()
                    server = Server(f"{role}-{number}", role, port, bootstrap, log, self.flags, dict(self.env))
                    self.servers.append(server)
                    self.start(server)
            for server in self.servers:
                self.wait_ready(server)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self.servers:
            self.kill(server)
        self._launcher.close()

    @property
    def prefill(self) -> Server:
        return self.servers[0]

    @property
    def decode(self) -> Server:
        return self.servers[self.prefills]

    @property
    def decode_servers(self) -> list[Server]:
        return self.servers[self.prefills :]

    def start(self, server: Server) -> None:
        argv = ["-m", "sglang.launch_server", "--model-path", str(self.model), "--host", HOST]
        argv += ["--port", str(server.port), "--disaggregation-mode", server.role]
        argv += ["--disaggregation-transfer-backend", "nixl"]
        if server.bootstrap_port is not None:
            argv += ["--disaggregation-bootstrap-port", str(server.bootstrap_port)]
        argv += server.flags
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._launcher.can_start(argv):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.pid = self._launcher.start(server.name, argv, server.log, server.env)

    def wait_ready(self, server: Server) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while server.ready()[0] != 200:
            how = self._launcher.ended(server.pid)
            assert how is None, f"{server.name} ended: {how}\n{server.read_log()[-3000:]}"
            assert time.monotonic() < deadline, f"{server.name} is not ready\n{server.read_log()[-3000:]}"
            time.sleep(0.1)

    def kill(self, server: Server) -> None:
        """Every process of it, at once; none of them runs when this returns. Raises ``TimeoutError``."""
        if not server.pid:  # never started
            return
        left = server.processes
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, signal.SIGKILL)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        deadline = time.monotonic() + PATIENCE_S
        while running := [one for one in left if runs(one)]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{server.name}: {running} have not ended after {PATIENCE_S:g} s")
            time.sleep(0.02)

    def replace(self, server: Server, flags: tuple[str, ...] | None = None) -> None:
        """A new server in place of this one, which may have ended, on the same ports."""
        self.kill(server)
        if flags is not None:
            server.flags = flags
        self.start(server)
        self.wait_ready(server)

    @contextlib.contextmanager
    def gateway(self, *flags: str) -> Iterator[str]:
        """The gateway before all of them, with the flags that ``sglang-pd up`` gives it; yields its URL once it knows
        every server."""
        port, log = self._ports.pick(), self.folder / "gateway.log"
        argv = [sys.executable, "-m", "smg", "launch", "--pd-disaggregation", "--host", HOST, "--port", str(port)]
        argv += ["--prometheus-host", HOST, "--prometheus-port", str(self._ports.pick())]
        argv += ["--worker-startup-check-interval", "1", *GATEWAY_POLICY, *GATEWAY_HEALTH, *GATEWAY_BREAKER]
        argv += [*GATEWAY_RETRY, *flags]
        for one in self.servers:
            argv += [f"--{one.role}", one.url, *([str(one.bootstrap_port)] if one.bootstrap_port else [])]
        with log.open("wb") as output:
            gateway = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while (known := probe.workers(port)) is None or len(known["workers"]) < len(self.servers):
                assert gateway.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline, f"{known}\n{log.read_text()[-3000:]}"
                time.sleep(0.1)
            yield f"http://{HOST}:{port}"
        finally:
            gateway.kill()
            gateway.wait()

    def room(self) -> dict[str, Any]:
        """What a gateway adds to a request: a new room, and where prefill is."""
        room = self._dice.getrandbits(62)
        return {"bootstrap_host": HOST, "bootstrap_port": self.prefill.bootstrap_port, "bootstrap_room": room}

    def both(
        self, body: Mapping[str, Any], path: str = "/generate", decode: Server | None = None, timeout: float = 120
    ) -> dict[str, Answer]:
        """One request to both servers at once, as a gateway sends it; nobody retries. The answers by role."""
        body = {**body, **self.room()}
        targets = {"prefill": self.prefill, "decode": decode or self.decode}
        with ThreadPoolExecutor(2) as pool:
            asked = {role: pool.submit(ask, server.url + path, body, timeout) for role, server in targets.items()}
        return {role: one.result() for role, one in asked.items()}


def leave(url: str, body: Mapping[str, Any], when: Callable[[bytes], bool]) -> bytes:
    """POST, and go away without a word once ``when`` holds of what was received so far; returns that.

    ``when`` is asked at once, after every piece, and every 10 ms. Raises ``AssertionError`` where the server closes
    first.
    """
    parts = urllib.parse.urlsplit(url)
    text = json.dumps(body).encode()
    head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((parts.hostname or HOST, parts.port or 80), timeout=PATIENCE_S) as connection:
        connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        received = b""
        while not when(received):
            if select.select([connection], [], [], 0.01)[0]:
                piece = connection.recv(65536)
                assert piece, f"the server closed the connection: {received!r}"
                received += piece
    return received


def foreign_message(address: tuple[str, int], *frames: bytes) -> None:
    """One ZMQ message that is none of the protocol; it has left when this returns."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.setsockopt(zmq.LINGER, int(PATIENCE_S * 1000))
        sender.connect("tcp://{}:{}".format(*address))
        sender.send_multipart(list(frames))


def generation(ids: list[int], new_tokens: int = 8, **more: Any) -> dict[str, Any]:
    """The body of a greedy ``/generate``."""
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling, **more}
