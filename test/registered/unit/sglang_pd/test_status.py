"""A server's status from what its ranks say, asked over real HTTP."""

import asyncio
import json
import os
import socket
import subprocess
import time

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sglang.srt.disaggregation.reliable.endpoint import Asked, Endpoint
from sglang_pd import ranks, ration, status
from sglang_pd.asking import Heard
from sglang_pd.cluster import procfs
from sglang_pd.status import PATHS, PEERS, ROOMS, STATUS, merged


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(ranks.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def client():
    app = FastAPI()
    status.add_routes(app, "decode")
    return TestClient(app)


def speaking(folder, name, **routes):
    """A rank, in this process; ``routes``: by the last part of the path, what its answer returns."""
    endpoint = Endpoint()
    endpoint.routes |= {f"/pd/{path}": answer for path, answer in routes.items()}
    endpoint.start()
    return ranks.announce(folder, name, "decode", endpoint.port)


def test_what_each_rank_says_stands_beside_how_long_it_took(folder):
    for name in ("tp0", "tp1"):
        speaking(folder, name, status=lambda name=name: {"rank": name})
    body = asyncio.run(status.ask(STATUS, "decode", {}))
    assert body["schema"] == {"name": "sglang-pd/server-status", "version": 1}
    assert body["role"] == "decode"
    seconds = [rank.pop("seconds") for rank in body["ranks"]]
    assert all(0 < one < 1 for one in seconds)
    assert body["ranks"] == [
        {"rank": name, "pid": os.getpid(), "problem": None, "said": {"rank": name}} for name in ("tp0", "tp1")
    ]


def test_ranks_that_do_not_answer_are_entries_and_cost_the_timeout_once(folder):
    """As with a stopped process: the system accepts the connection, and nobody reads."""
    speaking(folder, "tp0", status=lambda: {"well": True})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for rank in range(1, 8):
            ranks.announce(folder, f"tp{rank}", "decode", silent.getsockname()[1])
        start = time.monotonic()
        found = asyncio.run(status.ask(STATUS, "decode", {}))["ranks"]
        assert time.monotonic() - start < 2
    assert found[0]["said"] == {"well": True}
    assert {rank["problem"] for rank in found[1:]} == {"no answer within 1 s"}
    assert all(1 <= rank["seconds"] < 2 and rank["said"] is None for rank in found[1:])


def test_a_rank_that_is_gone_fails_or_speaks_no_json_is_an_entry(folder):
    child = subprocess.Popen(["sleep", "100"])
    gone = ranks.Rank("tp0", "decode", child.pid, procfs.identify(child.pid).started, 1)
    child.kill()
    child.wait()
    (folder / "rank-tp0.json").write_text(json.dumps(vars(gone)))
    speaking(folder, "tp1", peers=lambda: {"x": 1 / 0})
    found = asyncio.run(status.ask(PEERS, "decode", {}))["ranks"]
    assert [rank["problem"] for rank in found] == [
        f"its process {child.pid} is gone",
        'answered 500: {"error": "ZeroDivisionError: division by zero"}',
    ]


def test_a_server_without_ranks_has_none(folder, client):
    assert [client.get(path).json()["ranks"] for path in PATHS] == [[], [], []]


def test_filters_reach_every_rank_as_they_were_meant(folder, client):
    seen = []
    for name in ("tp0", "tp1"):
        speaking(folder, name, rooms=Asked(lambda text: seen.append(text) or {"rooms": []}))
    assert client.get(f"{ROOMS}?rid=a%2Bb%26c%20d&limit=5").status_code == 200
    assert seen == ["rid=a%2Bb%26c+d&limit=5"] * 2


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"{ROOMS}?phase=gone", "phase='gone' is not valid; allowed: the phases of decode: resolving, "),
        (f"{ROOMS}?x=1", "no parameter 'x'; allowed: room, rid, "),
        (f"{STATUS}?room=1", "no parameter 'room'; allowed: none"),
        (f"{PEERS}?room=1", "no parameter 'room'; allowed: none"),
    ],
)
def test_a_bad_filter_is_refused_before_anyone_is_asked(folder, client, query, said):
    def asked(text=""):
        raise AssertionError("a rank was asked")

    speaking(folder, "tp0", rooms=Asked(asked), status=asked, peers=asked)
    answer = client.get(query)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(said)


def test_whatever_a_client_calls_its_request_is_answered(folder, client):
    speaking(folder, "tp0", rooms=Asked(lambda text: {"rooms": [{"rid": "\ud800 ä"}]}))
    [rank] = client.get(ROOMS).json()["ranks"]
    assert rank["said"] == {"rooms": [{"rid": "\ud800 ä"}]}


@pytest.mark.parametrize("path", [STATUS, PEERS])
def test_a_crowd_shares_an_answer_and_who_asks_now_and_then_does_not(folder, client, path):
    asked = []

    def answer():
        asked.append(1)
        return {"number": len(asked)}

    speaking(folder, "tp0", **{path.rpartition("/")[2]: answer})
    start = time.monotonic()
    numbers = [client.get(path).json()["ranks"][0]["said"]["number"] for _ in range(40)]
    most = ration.BURST + ration.RATE * (time.monotonic() - start) + 1
    assert numbers == sorted(numbers)
    assert numbers[:3] == [1, 2, 3]
    assert len(asked) <= most


def test_those_who_ask_at_once_wait_for_one_answer():
    made = []

    async def make():
        made.append(1)
        await asyncio.sleep(0.05)
        return {"number": len(made)}

    async def crowd():
        shared = status.Shared(make)
        return await asyncio.gather(*[shared.text() for _ in range(50)])

    assert len(asyncio.run(crowd())) == 50
    assert len(made) <= ration.BURST + 1


def test_an_answer_that_failed_is_made_anew():
    outcomes = iter([ValueError("x"), *[{"well": True}] * 20])

    async def make():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def ask():
        shared = status.Shared(make)
        with pytest.raises(ValueError, match="x"):
            await shared.text()
        return [json.loads(await shared.text()) for _ in range(15)]

    assert asyncio.run(ask()) == [{"well": True}] * 15


def test_the_entry_of_a_rank():
    rank = ranks.Rank("tp0", "prefill", 1, 2, 3)
    body = merged(ROOMS, "prefill", [Heard(rank, None, "no answer within 1 s", 1.00049)])
    assert body == {
        "schema": {"name": "sglang-pd/server-rooms", "version": 1},
        "role": "prefill",
        "ranks": [{"rank": "tp0", "pid": 1, "seconds": 1.0, "problem": "no answer within 1 s", "said": None}],
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("key", "code"), [(None, 401), ("wrong", 401), ("secret", 200)])
def test_where_the_server_has_a_key_these_need_it(folder, path, key, code):
    from sglang.srt.utils.auth import add_api_key_middleware

    app = FastAPI()
    status.add_routes(app, "decode")
    add_api_key_middleware(app, api_key="secret", admin_api_key=None)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    assert TestClient(app).get(path, headers=headers).status_code == code
