"""A server's readiness from what its ranks and its bootstrap server say, asked over real HTTP."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sglang.srt.disaggregation.reliable.endpoint import Endpoint
from sglang_pd import ranks, ready
from sglang_pd.cluster import procfs
from sglang_pd.ready import PATH, Heard, verdict

GOOD = {"ready": True, "reasons": []}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(ranks.VARIABLE, str(tmp_path))
    return tmp_path


def speaking(folder, name, says):
    """A rank, in this process, that answers with what ``says`` returns."""
    endpoint = Endpoint()
    endpoint.routes[PATH] = says
    endpoint.start()
    return ranks.announce(folder, name, "decode", endpoint.port)


def ask(bootstrap=None, server=()):
    return asyncio.run(ready.ask("decode", bootstrap, server))


def test_every_rank_is_asked_and_all_must_be_ready(folder):
    speaking(folder, "tp0", lambda: GOOD)
    speaking(folder, "tp1", lambda: GOOD)
    status, body = ask()
    assert status == 200
    assert body == {
        "schema": 1,
        "ready": True,
        "role": "decode",
        "reasons": [],
        "ranks": [{"rank": name, "pid": os.getpid(), "said": GOOD} for name in ("tp0", "tp1")],
    }


def test_what_one_rank_complains_of_is_the_servers_reason(folder):
    speaking(folder, "tp0", lambda: GOOD)
    speaking(folder, "tp1", lambda: {"ready": False, "reasons": ["control thread peers is down: X"]})
    status, body = ask()
    assert (status, body["reasons"]) == (503, ["rank tp1: control thread peers is down: X"])


def test_a_server_without_ranks_is_not_ready(folder):
    status, body = ask()
    assert (status, body["reasons"]) == (503, ["no scheduler rank has announced itself"])


def test_the_servers_own_problems_count(folder):
    speaking(folder, "tp0", lambda: GOOD)
    status, body = ask(server=["it is starting"])
    assert (status, body["ready"], body["reasons"]) == (503, False, ["it is starting"])


def test_a_rank_whose_process_is_gone_is_known_at_once(folder):
    rank = speaking(folder, "tp0", lambda: GOOD)
    child = subprocess.Popen(["sleep", "100"])
    gone = ranks.Rank("tp0", "decode", child.pid, procfs.identify(child.pid).started, rank.port)
    child.kill()
    child.wait()
    (folder / "rank-tp0.json").write_text(json.dumps(vars(gone)))
    start = time.monotonic()
    status, body = ask()
    assert (status, body["reasons"]) == (503, [f"rank tp0: its process {child.pid} is gone"])
    assert body["ranks"] == [{"rank": "tp0", "pid": child.pid, "said": None}]
    assert time.monotonic() - start < 1


def test_ranks_that_do_not_answer_are_known_within_two_seconds_however_many(folder):
    """As with a stopped process: the system accepts the connection, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for rank in range(8):
            ranks.announce(folder, f"tp{rank}", "decode", silent.getsockname()[1])
        start = time.monotonic()
        status, body = ask()
        assert time.monotonic() - start < 2
    assert (status, body["reasons"]) == (503, [f"rank tp{rank}: no answer within 1.5 s" for rank in range(8)])


def test_a_port_where_nobody_listens(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ranks.announce(folder, "tp0", "decode", port)
    [reason] = ask()[1]["reasons"]
    assert reason.startswith("rank tp0: no answer: Cannot connect to host 127.0.0.1")


def test_an_endpoint_that_fails_is_a_reason(folder):
    speaking(folder, "tp0", lambda: {"x": 1 / 0})
    [reason] = ask()[1]["reasons"]
    assert reason == 'rank tp0: answered 500: {"error": "ZeroDivisionError: division by zero"}'


def test_a_prefill_whose_ranks_have_not_registered_is_not_ready(folder):
    """Upstream's bootstrap server, its registry empty."""
    from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    speaking(folder, "tp0", lambda: GOOD)
    [reason] = ask(bootstrap=f"127.0.0.1:{port}")[1]["reasons"]
    assert reason.startswith(f"bootstrap server at 127.0.0.1:{port}: no answer: ")
    server = CommonKVBootstrapServer("127.0.0.1", port)
    try:
        deadline = time.monotonic() + 10
        while "no answer" in (reason := ask(bootstrap=f"127.0.0.1:{port}")[1]["reasons"][0]):
            assert time.monotonic() < deadline, reason
        assert "answered 503: Prefill server not fully registered yet" in reason
        server.attn_tp_size = server.attn_cp_size = server.pp_size = server.dp_size = server._registered_count = 1
        server.page_size, server.kv_cache_dtype = 1, "auto"
        assert ask(bootstrap=f"127.0.0.1:{port}")[0] == 200
    finally:
        server.close()


def test_reasons_of_all_kinds_are_listed_together():
    rank = ranks.Rank("tp0", "prefill", 1, 2, 3)
    status, body = verdict("prefill", ["it is paused"], [Heard(rank, None, "no answer"), Heard(rank, GOOD)])
    assert status == 503
    assert body["reasons"] == ["it is paused", "rank tp0: no answer"]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"server_status": "Starting"}, ["it is starting"]),
        ({"server_status": "UnHealthy"}, []),
        ({"gracefully_exit": True, "is_pause": True}, ["it is shutting down", "it is paused"]),
    ],
)
def test_what_the_front_process_knows(changes, reasons):
    found = {"server_status": "Up", "gracefully_exit": False, "is_pause": False, **changes}
    manager = SimpleNamespace(**{**found, "server_status": SimpleNamespace(name=found["server_status"])})
    assert ready.server_problems(manager) == reasons


@pytest.mark.parametrize(("path", "allowed"), [(PATH, True), ("/pd/rooms", False), ("/pd/ready/x", False)])
def test_a_probe_needs_no_key_and_nothing_else_gets_in_that_way(path, allowed):
    from sglang.srt.utils.auth import AuthLevel, decide_request_auth

    decision = ready.allow_without_key(
        decide_request_auth,
        method="GET",
        path=path,
        authorization_header=None,
        api_key="secret",
        admin_api_key=None,
        auth_level=AuthLevel.NORMAL,
    )
    assert decision.allowed is allowed


@pytest.mark.parametrize("mode", ["null", "prefill", "decode"])
def test_the_route_is_there_where_there_is_a_kv_path(mode, monkeypatch, folder):
    app = FastAPI()
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.http_server", SimpleNamespace(app=app))
    args = SimpleNamespace(
        disaggregation_mode=mode, disaggregation_bootstrap_port=1, url=lambda port: f"http://127.0.0.1:{port}"
    )
    ready.serve(args, SimpleNamespace(server_status=SimpleNamespace(name="Up"), gracefully_exit=False, is_pause=False))
    answer = TestClient(app).get(PATH)
    if mode == "null":
        assert answer.status_code == 404
        return
    assert answer.status_code == 503
    bootstrap, rank = ["bootstrap server at 127.0.0.1:1: no answer"], ["no scheduler rank has announced itself"]
    expected = [*(bootstrap if mode == "prefill" else []), *rank]
    assert [
        reason[: len(wanted)] for reason, wanted in zip(answer.json()["reasons"], expected, strict=True)
    ] == expected
