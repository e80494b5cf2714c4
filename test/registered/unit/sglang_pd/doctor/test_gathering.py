"""Logs, processes, GPUs and targets: what is read from this machine, and how."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sglang_pd.cluster import procfs
from sglang_pd.doctor import gpus, listeners, logs, processes, stacks, targets, trim
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.logged import failures, time_of
from sglang_pd.doctor.paths import INFO, LOADS, METRICS, READY, STATUS, WORKERS
from sglang_pd.errors import UserError

LOG = """\
[2027-01-15 08:00:00] server_args={'page_size': 1}
[2027-01-15 08:00:01] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK
\x1b[2m2027-01-15 08:00:02\x1b[0m \x1b[31mERROR\x1b[0m it broke
[2027-01-15 08:00:03] Prefill batch, #new-seq: 1
[2027-01-15 08:00:04] Decode batch, #running-req: 1
[2027-01-15 08:00:05] PD room failed: role=decode room=17 rid=a%201 phase=waiting reason=prefill_never_sent
[2027-01-15 08:00:06] all quiet
[2027-01-15 08:00:07] server_args=ServerArgs(page_size=1)
"""


def test_the_lines_that_matter(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(LOG)
    found = logs.of_file(str(path))
    assert found.matched == [
        "2027-01-15 08:00:02 ERROR it broke",
        "[2027-01-15 08:00:05] PD room failed: role=decode room=17 rid=a%201 phase=waiting reason=prefill_never_sent",
    ]
    assert found.tail == ["[2027-01-15 08:00:06] all quiet"]
    assert found.last_batch == "[2027-01-15 08:00:04] Decode batch, #running-req: 1"
    assert (found.starts, found.matched_total) == (2, 2)


def test_a_long_log_is_read_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "READ_BYTES", 1000)
    path = tmp_path / "server.log"
    path.write_text("ERROR: old\n" * 1000 + "ERROR: " + "n" * 600 + "\n")
    found = logs.of_file(str(path))
    assert found.matched_total < 100
    assert len(found.matched[-1]) == logs.LINE_CHARACTERS


def test_a_log_that_is_not_there():
    assert logs.of_file("/nowhere/x.log").problem == "cannot be read: No such file or directory"


def test_failed_requests_of_a_log():
    lines = [
        *LOG.splitlines(),
        "[2027-01-15 08:00:09] Decode transfer failed for request rank=0 decode_req.req.rid='b2' "
        "decode_req.req.bootstrap_room=18 with exception KVTransferError(bootstrap_room=18): Request 18 timed out",
    ]
    ours, upstreams = failures(lines, utc_offset=3600.0)
    assert (ours.room, ours.rid, ours.what, ours.why) == (17, "a 1", "decode waiting", "prefill_never_sent")
    assert (upstreams.room, upstreams.rid, upstreams.what) == (18, "b2", "Decode transfer")
    assert upstreams.why.endswith("timed out")
    assert upstreams.at == 1_800_000_009.0 - 3600.0
    assert time_of("no time", 0.0) is None
    assert time_of("9999-99-99 10:00:00", 0.0) is None


@pytest.fixture
def child():
    """A process that computes, and has a secret and a setting in its environment."""
    environment = {**os.environ, "SGLANG_SOMETHING": "1", "MY_API_KEY": "not-for-you", "LANG": "C"}
    code = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", code, "--port", "31000"], env=environment)
    yield process
    process.kill()
    process.wait()


def test_a_process_that_computes(child):
    [stat] = processes.tree(child.pid)
    deadline = time.monotonic() + 20
    cores = 0.0
    while cores < 0.1:
        assert time.monotonic() < deadline
        before = processes.look([child.pid])
        time.sleep(0.1)
        found = processes.describe(stat, before, processes.look([child.pid]))
        cores = found.cores
    assert found.command[-2:] == ["--port", "31000"]
    assert found.environment["SGLANG_SOMETHING"] == "1"
    assert "MY_API_KEY" not in found.environment
    assert processes.read_environment(child.pid)["MY_API_KEY"] == "not-for-you"
    assert found.threads[0].tid == child.pid
    assert 0 <= found.age_seconds < 30


def test_a_process_that_is_gone(child):
    child.kill()
    child.wait()
    assert processes.tree(child.pid) == []
    assert processes.read_environment(child.pid) == {}
    assert processes.output_of(child.pid) is None


def test_a_child_that_ended_and_was_not_asked_for():
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; p = subprocess.Popen(['true']); sys.stdin.read()"],
        stdin=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 20
        while "Z" not in [one.state for one in processes.tree(parent.pid)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--port", "1"], "1"),
        (["--port=2"], "2"),
        (["--port", "1", "--port", "3"], "3"),
        (["x"], None),
        (["--port"], None),
    ],
)
def test_flags(arguments, value):
    assert processes.flag(arguments, "--port") == value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python\0-m\0x\0--port\x001", ["python", "-m", "x", "--port", "1"]),
        ("python -m x --port 1", ["python", "-m", "x", "--port", "1"]),
        ("python -m x --note 'a b'", ["python", "-m", "x", "--note", "a b"]),
        ("python -m x --note it's", ["python", "-m", "x", "--note", "it's"]),
        ("sglang::scheduler", ["sglang::scheduler"]),
        ("", [""]),
    ],
)
def test_command_lines(text, found):
    assert processes.words(text) == found


def test_where_a_process_writes_to(tmp_path):
    path = tmp_path / "out.log"
    with path.open("w") as output:
        process = subprocess.Popen(["sleep", "60"], stdout=output, stderr=output)
    try:
        assert processes.output_of(process.pid) == str(path)
    finally:
        process.kill()
        process.wait()


def test_who_listens(tmp_path):
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        found = listeners.by_port()
    assert found[port] == os.getpid()
    assert port in listeners.ports_of({os.getpid()}, found)


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:1", True), ("http://localhost:1", True), ("http://[::1]:1", True), ("http://0.0.0.0:1", True),
     ("http://198.51.100.7:1", False), ("http://elsewhere.example:1", False)],
)  # fmt: skip
def test_which_urls_are_this_machine(url, local):
    assert listeners.is_local(url) is local


def test_gpus():
    rows = "0, GPU-a, NVIDIA RTX PRO 6000, 0, 165.20, 90000, 97887\n1, GPU-b, NVIDIA X, [N/A], [N/A], 1, 2\n"
    first, second = gpus.parse(rows, "GPU-a, 71\nGPU-a, 72\n\n")
    assert (first.utilisation, first.power_watts, first.pids) == (0.0, 165.2, [71, 72])
    assert (second.utilisation, second.power_watts, second.pids) == (None, None, [])


def test_no_py_spy_is_said(monkeypatch):
    monkeypatch.setattr(stacks, "find", lambda: None)
    assert stacks.dump(os.getpid(), 1.0) == (None, "there is no py-spy here (pip install py-spy)")


def tool(tmp_path, monkeypatch, code):
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    monkeypatch.setattr(stacks, "find", lambda: str(path))


def test_py_spy_is_asked_not_to_stop_the_process(tmp_path, monkeypatch):
    tool(tmp_path, monkeypatch, 'echo "$@"')
    assert stacks.dump(4711, 5.0) == ("dump --nonblocking --pid 4711\n", None)


@pytest.mark.parametrize(
    ("code", "problem"),
    [("echo no right >&2; exit 1", "py-spy failed: no right"), ("exec sleep 30", "py-spy did not end within 0.3 s")],
)
def test_py_spy_that_fails_or_hangs(tmp_path, monkeypatch, code, problem):
    tool(tmp_path, monkeypatch, code)
    assert stacks.dump(4711, 0.3) == (None, problem)


@pytest.mark.parametrize(
    ("command", "role", "url"),
    [
        ("python -m sglang.launch_server --disaggregation-mode prefill --port 5", "prefill", "http://127.0.0.1:5"),
        ("sglang serve --disaggregation-mode=decode --host 0.0.0.0", "decode", "http://127.0.0.1:30000"),
        ("python -m sglang.launch_server --disaggregation-mode decode --host ::1", "decode", "http://[::1]:30000"),
        ("python -m smg launch --pd-disaggregation --port 7", "gateway", "http://127.0.0.1:7"),
        ("python -m sglang.launch_server", None, None),
        ("bash", None, None),
    ],
)
def test_what_a_command_line_runs(command, role, url):
    assert targets.what_runs(command.split()) == (role, url)


def test_a_server_that_a_shell_started():
    """As a unit may do."""
    code = "import time; time.sleep(60)"
    server = f"{sys.executable} -c '{code}' --disaggregation-mode decode --port 31777"
    shell = subprocess.Popen(["sh", "-c", f"{server} & wait"], start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while targets.what_serves(shell.pid)[0] == shell.pid:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert targets.what_serves(shell.pid)[1:] == ("decode", "http://127.0.0.1:31777")
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_a_unit():
    text = f"Id=p.service\nLoadState=loaded\nActiveState=active\nMainPID={os.getpid()}\nNRestarts=3\n"
    found = targets.of_properties("p.service", text)
    assert (found.pid, (found.unit or {})["NRestarts"]) == (os.getpid(), "3")
    with pytest.raises(UserError, match=r"no such unit loaded \(it is not-found\)"):
        targets.of_properties("p.service", "LoadState=not-found\n")


def test_bad_targets():
    with pytest.raises(UserError, match=r"--decode 'http://a:1' is given twice"):
        targets.of_urls(["http://a:1"], ["http://a:1"], None)
    with pytest.raises(UserError, match="--pid 0: there is no such process"):
        targets.of_pids([0])
    with pytest.raises(UserError, match="is no server of a prefill-decode pair"):
        targets.of_pids([os.getpid()])


def test_answers_are_cut_to_what_is_needed():
    info = Reply(INFO, 200, 0.0, {"page_size": 1, "api_key": "secret", "chat_template": "x" * 9000})
    assert trim.trimmed(info).body == {"page_size": 1}
    text = '# HELP x\nsglang:num_running_reqs{a="1"} 2.0\nsglang:num_running_reqs{a="2"} 3.0\nsglang:e2e_bucket 4\n'
    assert trim.trimmed(Reply(METRICS, 200, 0.0, text)).body == {"num_running_reqs": 5.0}
    workers = Reply(WORKERS, 200, 0.0, {"workers": [{"url": "u", "is_healthy": True, "labels": {}, "id": "i"}]})
    assert trim.trimmed(workers).body == {"workers": [{"url": "u", "is_healthy": True}]}
    loads = Reply(
        LOADS, 200, 0.0, {"version": "1", "loads": [{"num_running_reqs": 1, "memory": {}, "queues": {"waiting": 0}}]}
    )
    kept = {"num_running_reqs": 1, "disaggregation": None, "queues": {"waiting": 0}}
    assert trim.trimmed(loads).body == {"version": "1", "loads": [kept]}
    assert len(trim.trimmed(Reply("/x", 500, 0.0, "e" * 9000)).body) == trim.MOST_TEXT


def test_what_the_status_says_better_is_said_once():
    ready = Reply(READY, 200, 0.0, {"ready": True, "ranks": [{"rank": "tp0", "pid": 1, "said": {"threads": {}}}]})
    replies = {STATUS: Reply(STATUS, 200, 0.0, {"ranks": []}), READY: ready, METRICS: Reply(METRICS, 200, 0.0, {})}
    assert trim.without_doubles(replies)[READY].body == {"ready": True, "ranks": [{"rank": "tp0", "pid": 1}]}
    assert METRICS not in trim.without_doubles(replies)
    replies[STATUS] = Reply(STATUS, 401)
    assert trim.without_doubles(replies) == replies


def test_this_process_is_known_by_its_identity():
    assert procfs.identify(os.getpid()) is not None
