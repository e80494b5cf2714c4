"""The units, what they start, and what the started tells systemd; the servers here answer HTTP and do nothing else."""

import array
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sglang_pd.cluster import plan
from sglang_pd.environ import envs

FOLDER = Path(__file__).parents[4] / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
# From the end of the drain to the end of the process.
EXIT_S = 5.0
PATIENCE_S = 60.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-notify") is None, reason="needs systemd-notify: systemd")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")

# In place of Python: it answers as the file in ANSWER says (status, then text), and writes down how it was called.
FAKE = f"""#!{sys.executable}
import http.server, os, sys
open(os.environ["CALLED"], "w").write("\\0".join(sys.argv[1:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, _, text = open(os.environ["ANSWER"]).read().partition(" ")
        self.send_response(int(status)); self.end_headers(); self.wfile.write(text.encode())
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PD_PORT"])), Handler).serve_forever()
"""


def settings(unit: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def install(*arguments: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path else {})}
    command = ["bash", FOLDER / "install.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)


@pytest.fixture
def root(tmp_path: Path, model: Path) -> Path:
    """A machine's files, with everything installed."""
    root = tmp_path / "root"
    done = install(
        "--model", model, "--flags", "--cuda-graph-max-bs-decode 96", "--root", root, "--python", sys.executable
    )
    assert done.returncode == 0, done.stderr
    return root


def environment_of(file: Path) -> dict[str, str]:
    """As systemd reads an environment file."""
    pairs = (line.partition("=") for line in file.read_text().splitlines() if line and line[0] != "#")
    return {name: "".join(shlex.split(value)) if value else "" for name, _, value in pairs}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: systemd")
def test_systemd_has_nothing_to_say_against_the_units(root: Path):
    # What every unit wants of the system.
    targets = root / "usr/lib/systemd/system"
    targets.mkdir(parents=True)
    for target in Path("/usr/lib/systemd/system").glob("*.target"):
        shutil.copy(target, targets)
    names = [unit.name.replace("@", "@0") for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", f"--root={root}", *names], capture_output=True, text=True)
    # It exits with 0 where it does not know a setting.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_waits_until_a_server_has_drained(unit: Path):
    found = settings(unit)
    assert float(found["TimeoutStopSec"]) >= envs.SGLANG_PD_DRAIN_TIMEOUT.default + EXIT_S
    assert found["KillMode"] == "mixed"
    # A live server was never seen silent for 2 s; `serve` says that it lives every 5 s, and asks for 3 s at most.
    assert float(found["WatchdogSec"]) >= 2 * (5 + 3)
    assert found["WatchdogSignal"] == "SIGKILL"


def test_the_gateway_has_the_flags_of_the_local_cluster():
    flags = shlex.split((FOLDER / "gateway-flags").read_text())
    ours = (*plan.GATEWAY_POLICY, *plan.GATEWAY_HEALTH, *plan.GATEWAY_BREAKER, *plan.GATEWAY_RETRY)
    assert [flag for flag in ours if flag not in flags] == []
    pairs = dict(pairwise(flags))
    for flag, value in pairwise(ours):
        if flag.startswith("--") and not value.startswith("--"):
            assert pairs[flag] == value
    assert float(pairs["--shutdown-grace-period-secs"]) < float(
        settings(FOLDER / "sglang-pd-gateway.service")["TimeoutStopSec"]
    )


def test_what_is_installed_fits_together(root: Path, model: Path):
    etc = root / "etc/sglang-pd"
    common, gateway = environment_of(etc / "common.env"), environment_of(etc / "gateway.env")
    assert (common["PD_MODEL"], common["PD_PYTHON"]) == (str(model), sys.executable)
    prefill, decode = environment_of(etc / "prefill-0.env"), environment_of(etc / "decode-0.env")
    ports = {prefill["PD_PORT"], decode["PD_PORT"], prefill["PD_BOOTSTRAP_PORT"], gateway["PD_PORT"]}
    assert len(ports) == 4
    text = (etc / "gateway.env").read_text()
    prefill_url = f"--prefill http://127.0.0.1:{prefill['PD_PORT']} {prefill['PD_BOOTSTRAP_PORT']}"
    assert f'"{prefill_url} --decode http://127.0.0.1:{decode["PD_PORT"]}"' in text


def test_what_an_operator_changed_stays(root: Path, model: Path):
    (root / "etc/sglang-pd/common.env").write_text("PD_FLAGS=mine\n")
    done = install("--model", model, "--root", root, "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    assert "kept     " in done.stdout
    assert (root / "etc/sglang-pd/common.env").read_text() == "PD_FLAGS=mine\n"


def test_the_cards_are_shared_between_the_roles(tmp_path: Path, model: Path):
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo GPU $i: RTX; done\n")
    smi.chmod(0o755)
    path = f"{smi.parent}:{os.environ['PATH']}"
    done = install("--model", model, "--root", tmp_path / "r", "--python", sys.executable, path=path)
    assert done.returncode == 0, done.stderr
    etc = tmp_path / "r/etc/sglang-pd"
    assert 'PD_ROLE_FLAGS="--tp-size 4 --base-gpu-id 0"' in (etc / "prefill-0.env").read_text()
    assert 'PD_ROLE_FLAGS="--tp-size 4 --base-gpu-id 4"' in (etc / "decode-0.env").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "/nowhere"], "--model is missing"),
        (["--model", "/nowhere"], "--model /nowhere has no config.json"),
        (["--models", "x"], "--models is not possible; allowed: --model, --flags, --root, --python"),
    ],
)
def test_wrong_input_is_named(arguments: list[str], message: str):
    done = install(*arguments)
    assert done.returncode != 0
    assert message in done.stderr


class Running:
    """``serve`` in a process group of its own, and what it tells systemd."""

    def __init__(self, folder: Path, role: str, environment: dict[str, str]):
        self.answer, self._called = folder / "answer", folder / "called"
        self.answer.write_text('503 {"ready": false, "reasons": ["it is starting"]}')
        fake = folder / "python"
        fake.write_text(FAKE)
        fake.chmod(0o755)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["bash", FOLDER / "serve", role],
            env={
                "PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(folder / "notify"), "ANSWER": str(self.answer),
                "CALLED": str(self._called), "PD_PYTHON": str(fake), "PD_HOST": "127.0.0.1", "PD_PORT": str(port),
                "PD_MODEL": "/models/m", **environment,
            },
            start_new_session=True,
        )  # fmt: skip

    def hears(self, word: str, within_s: float = PATIENCE_S) -> bool:
        """Whether it says that to systemd in time."""
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                said, ancillary, _, _ = self._socket.recvmsg(4096, socket.CMSG_LEN(array.array("i").itemsize))
            except TimeoutError:
                return False
            # systemd-notify waits until the descriptor that it passes is closed.
            for _, _, data in ancillary:
                for descriptor in array.array("i", data):
                    os.close(descriptor)
            if word in said.decode().splitlines():
                return True
        return False

    def called(self) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while not self._called.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._called.read_text().split("\0")

    def end(self) -> None:
        # What systemd does with the rest of a unit.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._socket.close()


@pytest.fixture
def serving(tmp_path: Path):
    started: list[Running] = []

    def start(role: str, **environment: str) -> Running:
        started.append(Running(tmp_path, role, environment))
        return started[-1]

    yield start
    for one in started:
        one.end()


@needs_systemd
@needs_curl
def test_systemd_is_told_of_readiness_and_of_life_and_not_of_one_that_hangs(serving):
    server = serving("decode", PD_WATCH_SECONDS="0.2")
    server.called()
    assert not server.hears("READY=1", within_s=1)
    server.answer.write_text('200 {"ready": true}')
    assert server.hears("READY=1")
    assert server.hears("WATCHDOG=1")
    # It drains: not ready, and alive.
    server.answer.write_text('503 {"ready": false, "reasons": ["it is shutting down"]}')
    assert server.hears("WATCHDOG=1")
    assert server.hears("WATCHDOG=1")
    server.answer.write_text('503 {"ready": false, "reasons": ["rank tp0: no answer within 1.5 s"]}')
    late = 0
    # One that was on its way may still come.
    while server.hears("WATCHDOG=1", within_s=1):
        assert (late := late + 1) < 10
    assert not server.hears("WATCHDOG=1", within_s=2)


@needs_curl
def test_a_prefill_is_the_stock_command_line(serving):
    server = serving(
        "prefill", PD_BOOTSTRAP_PORT="8998", PD_FLAGS="--cuda-graph-max-bs-decode 96", PD_ROLE_FLAGS="--tp-size 4"
    )
    called = server.called()
    assert called[:10] == [
        "-m", "sglang.launch_server", "--model-path", "/models/m", "--served-model-name", "m",
        "--disaggregation-mode", "prefill",
        "--disaggregation-transfer-backend", "nixl",
    ]  # fmt: skip
    assert called[14:] == [
        "--disaggregation-bootstrap-port", "8998", "--enable-metrics",
        "--cuda-graph-max-bs-decode", "96", "--tp-size", "4",
    ]  # fmt: skip


@needs_curl
def test_the_gateway_gets_workers_and_flags(serving):
    workers = "--prefill http://a:1 8998 --decode http://b:2"
    called = serving("gateway", PD_WORKERS=workers, PD_GATEWAY_FLAGS="--policy cache_aware").called()
    assert called[:4] == ["-m", "smg", "launch", "--pd-disaggregation"]
    assert called[4:9] == workers.split()
    assert called[-2:] == ["--policy", "cache_aware"]


@pytest.mark.parametrize(
    ("role", "message"), [("both", "allowed: prefill, decode, gateway"), ("decode", "PD_PYTHON is not set")]
)
def test_serve_names_what_is_wrong(role: str, message: str):
    command = ["bash", FOLDER / "serve", role]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 2
    assert message in done.stderr
