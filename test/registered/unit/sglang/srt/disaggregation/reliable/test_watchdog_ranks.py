"""Asking the other ranks of a server, over real HTTP."""

import json
import os
import socket
import subprocess
import time

import pytest

from sglang.srt.disaggregation.reliable import watchdog_ranks
from sglang.srt.disaggregation.reliable.endpoint import Endpoint
from sglang.srt.disaggregation.reliable.watchdog_cause import Rank
from sglang.srt.disaggregation.reliable.watchdog_ranks import in_step
from sglang.srt.disaggregation.reliable.watchdog_stacks import Place
from sglang_pd import ranks
from sglang_pd.cluster import procfs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(ranks.VARIABLE, str(tmp_path))
    return tmp_path


def speaking(folder, name, **routes):
    endpoint = Endpoint()
    endpoint.routes |= {f"/pd/{path}": answer for path, answer in routes.items()}
    endpoint.start()
    return ranks.announce(folder, name, "decode", endpoint.port)


@pytest.mark.parametrize(
    ("own", "names", "found"),
    [
        ("tp0", ["tp0", "tp1", "tp2"], {"tp0", "tp1", "tp2"}),
        ("tp0", ["pp1-tp0", "tp0"], {"pp1-tp0", "tp0"}),
        ("dp0-tp0", ["dp0-tp0", "dp0-tp1", "dp1-tp0", "dp1-tp1"], {"dp0-tp0", "dp0-tp1"}),
        ("dp0-tp0", ["dp0-tp0", "dp1-tp1"], {"dp0-tp0", "dp1-tp1"}),
        ("dp1-pp1-tp0", ["dp0-tp0", "dp0-pp1-tp0", "dp1-tp0", "dp1-pp1-tp0"], {"dp1-tp0", "dp1-pp1-tp0"}),
    ],
    ids=["tensor parallel", "pipeline", "data parallel", "data-parallel attention", "all"],
)
def test_ranks_in_step(own, names, found):
    assert in_step(own, names) == found


def test_the_others_are_those_with_another_pid(folder):
    speaking(folder, "tp0")
    (folder / "rank-tp1.json").write_text(json.dumps(vars(ranks.Rank("tp1", "decode", 1, 1, 1))))
    assert [rank.name for rank in watchdog_ranks.others(os.getpid())] == ["tp1"]


def test_outside_a_server_there_are_none(monkeypatch):
    monkeypatch.delenv(ranks.VARIABLE, raising=False)
    assert watchdog_ranks.others(os.getpid()) == []


def test_one_that_answers_tells_where_its_loop_is(folder):
    said = {"loop_age_seconds": 31.0, "place": "collective", "frame": "all_reduce (x.py:1)"}
    rank = speaking(folder, "tp1", stacks=lambda: said)
    assert watchdog_ranks.ask(rank) == Rank("tp1", 31.0, Place.COLLECTIVE, "all_reduce (x.py:1)")


def test_one_that_is_stopped_costs_a_second_and_is_told(folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rank = ranks.announce(folder, "tp1", "decode", silent.getsockname()[1])
        start = time.monotonic()
        assert watchdog_ranks.ask(rank) == Rank("tp1", problem="no answer within 1 s")
        assert time.monotonic() - start < 2


def test_all_are_asked_at_once(folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = [ranks.announce(folder, f"tp{rank}", "decode", silent.getsockname()[1]) for rank in range(1, 6)]
        start = time.monotonic()
        assert [rank.name for rank in watchdog_ranks.ask_all(found)] == ["tp1", "tp2", "tp3", "tp4", "tp5"]
        assert time.monotonic() - start < 3
    assert watchdog_ranks.ask_all([]) == []


def test_one_that_is_gone_is_told():
    child = subprocess.Popen(["sleep", "100"])
    gone = ranks.Rank("tp1", "decode", child.pid, procfs.identify(child.pid).started, 1)
    child.kill()
    child.wait()
    assert watchdog_ranks.ask(gone) == Rank("tp1", problem=f"its process {child.pid} is gone")


def test_one_that_answers_nonsense_is_told(folder):
    assert watchdog_ranks.ask(speaking(folder, "tp1")).problem == "answered 404"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"speaks": True, "stalls": {"open": [{}]}}, True),
        ({"speaks": True, "stalls": {"open": []}}, False),
        ({"speaks": False, "stalls": {"open": [{}]}}, False),
        ({"speaks": None, "stalls": None}, False),
    ],
)
def test_one_that_speaks_for_all_and_has_a_stall_has_told(folder, said, told):
    assert watchdog_ranks.has_told(speaking(folder, "tp0", status=lambda: said)) is told
