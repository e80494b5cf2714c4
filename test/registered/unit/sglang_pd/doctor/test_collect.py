"""The whole way from processes that run to a bundle: nothing secret gets through, and nothing keeps it waiting."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from harness.evidence import BOOTSTRAP, room, status
from harness.evidence import answer as merged
from sglang_pd.doctor import collect, server, targets
from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import to_data
from sglang_pd.doctor.fetch import get
from sglang_pd.doctor.paths import INFO, LIVE, STATUS
from sglang_pd.doctor.rules import judge
from sglang_pd.doctor.server import Options
from sglang_pd.doctor.targets import Target
from sglang_pd.doctor.tasks import Deadline

KEY = "sk-unit-0815-secret"

# Answers as a decode server would, to whoever knows the key.
SERVER = """
import http.server, json, sys
port, key, bodies = int(sys.argv[sys.argv.index("--port") + 1]), sys.argv[2], json.loads(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers.get("Authorization") == "Bearer " + key
        body = bodies.get(self.path.split("&")[0]) if known else {"error": "Unauthorized"}
        self.send_response(401 if not known else 200 if body is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def log_message(self, format, *arguments):
        print("ERROR: asked with", self.headers.get("Authorization"), "the key is", key, file=sys.stderr, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(server, "WINDOW_S", 0.1)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def decode(tmp_path):
    """The pid and the port of a server with a key in its flags, its environment and its log."""
    port = free_port()
    rooms = [room(7, "waiting", 0.3, peer=BOOTSTRAP)]
    bodies = {
        STATUS: merged("status", {"tp0": status("decode", rooms)}),
        LIVE.partition("&")[0]: merged("rooms", {"tp0": {"rooms": rooms, "truncated": False}}),
        INFO: {"page_size": 1, "api_key": KEY},
    }
    argv = [sys.executable, "-c", SERVER, json.dumps(bodies), KEY, "--disaggregation-mode", "decode"]
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "SGLANG_X_TOKEN": "another-secret"}
    with (tmp_path / "decode.log").open("w") as log:
        process = subprocess.Popen([*argv, "--port", str(port), "--api-key", KEY], env=environment, stderr=log)
    deadline = time.monotonic() + 20
    while not listens(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert get(f"http://127.0.0.1:{port}", "/", Deadline(5), KEY).status == 404  # and that is logged
    yield process.pid, port
    process.kill()
    process.wait()


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_a_bundle_has_no_trace_of_a_key_in_flags_environment_and_log(decode):
    pid, port = decode
    found = collect.snapshot(targets.of_pids([pid]), Options(timeout=5))
    text = json.dumps(to_data(found))
    assert "the key is ***" in text, "its log was not read"
    assert '"--api-key", "***"' in text, "its command line was not read"
    assert '"SGLANG_X_TOKEN": "***"' in text, "its environment was not read"
    assert KEY not in text
    assert "another-secret" not in text
    [seen] = found.servers
    assert (seen.role, seen.url, seen.ports) == ("decode", f"http://127.0.0.1:{port}", [port])
    assert seen.replies[STATUS].ok, "the key on its command line opens it"
    assert "api_key" not in seen.replies[INFO].body


def test_a_server_by_its_url_is_found_among_local_processes(decode):
    pid, port = decode
    [seen] = collect.snapshot(targets.of_urls([], [f"http://127.0.0.1:{port}"], None), Options(timeout=5)).servers
    assert seen.processes is not None
    assert seen.processes[0].pid == pid
    assert [one.room for one in Case(collect.Snapshot(0.0, "h", 5.0, [seen])).decodes[0].live] == [7]


def test_a_key_that_is_given_is_no_secret_that_leaks(decode):
    _, port = decode
    target = Target("far away", "decode", f"http://127.0.0.2:{port}")
    found = collect.snapshot([target], Options(timeout=2, api_key="wrong-key-given"))
    assert "wrong-key-given" not in json.dumps(to_data(found))


def test_targets_that_hang_cost_the_timeout_once_and_are_findings():
    with socket.socket() as one, socket.socket() as other:
        for mute in (one, other):
            mute.bind(("127.0.0.1", 0))
            mute.listen(64)
        urls = [f"http://127.0.0.1:{mute.getsockname()[1]}" for mute in (one, other)]
        start = time.monotonic()
        found = collect.snapshot(targets.of_urls(urls[:1], urls[1:], None), Options(timeout=1.0))
        assert time.monotonic() - start < 1.0 + 1.0
    findings = judge(Case(found))
    assert [one.rule for one in findings[:2]] == ["unreachable", "unreachable"]
    assert all("hangs: its port takes connections" in one.headline for one in findings[:2])


ODD = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    "body",
    [
        "[]", "3", "null", "{oops", '{"ranks": 3, "workers": 3, "loads": 3}',
        '{"ranks": [3], "workers": [3], "loads": [3]}', '{"ranks": [{"rank": 4, "pid": "x", "said": {"rooms": [{}]}}]}',
    ],
)  # fmt: skip
def test_whoever_answers_something_else_is_no_reason_to_fail(body):
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", ODD, body, str(port)])
    try:
        deadline = time.monotonic() + 20
        while not listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        url = f"http://127.0.0.1:{port}"
        found = collect.snapshot(targets.of_urls([url], [], url.replace("127.0.0.1", "localhost")), Options(timeout=2))
        assert all(
            one.replies[path].status == 200
            for one in found.servers
            for path in one.replies
            if path in ("/ready", STATUS)
        )
        assert judge(Case(found))
    finally:
        process.kill()
        process.wait()


def test_evidence_that_is_not_gathered_in_time_is_said(monkeypatch):
    monkeypatch.setattr(collect, "gather", lambda *arguments: time.sleep(60))
    found = collect.snapshot([Target("slow", "decode", "http://x:1", 5)], Options(timeout=0.2))
    assert found.gaps == ["slow: its evidence was not gathered in time"]
    assert (found.servers[0].name, found.servers[0].expected_pid) == ("slow", 5)
