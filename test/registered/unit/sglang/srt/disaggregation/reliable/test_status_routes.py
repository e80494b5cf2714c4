"""A rank's status routes, of a manager of upstream's and on the endpoint."""

import http.client
import json
import os
import time
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import ready, status_routes
from sglang.srt.disaggregation.reliable.endpoint import Asked, Endpoint
from sglang_pd.status import PATHS, PEERS, ROOMS, STACKS, STATUS
from sglang_pd.version import __version__


def upstreams_manager():
    return SimpleNamespace(disaggregation_mode=SimpleNamespace(value="decode"), local_ip="10.0.0.1", rank_port=4001)


def routes(manager):
    return status_routes.routes(manager, "tp0", {"tp_rank": 0}, ready.watcher(manager, []), lambda: 0.5)


@pytest.fixture
def endpoint():
    one = Endpoint()
    one.routes |= routes(upstreams_manager())
    one.start()
    return one


def ask(endpoint, path):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_the_process_tells_who_it_is(monkeypatch):
    monkeypatch.setenv("SGLANG_PD_TRANSFER_TIMEOUT", "7")
    monkeypatch.setenv("SGLANG_PD_NO_SUCH_VARIABLE", "8")
    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    said = routes(upstreams_manager())[STATUS]()
    assert (said["role"], said["rank"], said["pid"], said["loop_age_seconds"]) == ("decode", "tp0", os.getpid(), 0.5)
    assert said["versions"]["sglang-pd"] == __version__
    assert said["versions"]["nixl"]
    assert said["environment"]["SGLANG_PD_TRANSFER_TIMEOUT"] == "7"
    assert not {"SGLANG_PD_NO_SUCH_VARIABLE", "SGLANG_API_KEY"} & said["environment"].keys()
    assert (said["address"], said["agent"], said["speaks"]) == ("10.0.0.1:4001", None, None)
    assert (said["coordinates"]["tp_rank"], said["coordinates"]["attn_tp_size"]) == (0, None)


def test_age_and_start_are_those_of_the_process():
    said = routes(upstreams_manager())[STATUS]()
    assert 0 < said["age_seconds"] < 24 * 3600
    assert said["started_at"] + said["age_seconds"] == pytest.approx(time.time(), abs=1)


def test_a_rank_tells_where_its_threads_are(endpoint):
    status, said = ask(endpoint, STACKS)
    assert (status, said["schema"]["name"], said["loop_age_seconds"]) == (200, "sglang-pd/stacks", 0.5)
    assert said["place"] == "elsewhere"
    main = said["stacks"][0]
    assert main["main"]
    assert said["frame"] == main["frames"][0]
    assert any(frame.startswith("test_a_rank_tells_where_its_threads_are (") for frame in main["frames"])


def test_with_upstreams_classes_every_path_answers(endpoint):
    answers = {path: ask(endpoint, path) for path in PATHS}
    assert {status for status, _ in answers.values()} == {200}
    assert [answers[path][1][name] for path, name in ((STATUS, "rooms"), (ROOMS, "rooms"), (PEERS, "peers"))] == [
        None
    ] * 3


def test_a_query_reaches_the_path_that_takes_one(endpoint):
    assert ask(endpoint, f"{ROOMS}?rid=a%2Bb&limit=7")[1]["filter"] == {"rid": "a+b", "limit": "7"}


def test_a_bad_filter_is_a_400_that_says_what_is_allowed(endpoint):
    said = {"error": "limit='1001' is not valid; allowed: a whole number from 1 to 1000"}
    assert ask(endpoint, f"{ROOMS}?limit=1001") == (400, said)


@pytest.mark.parametrize("path", [STATUS, PEERS])
def test_a_path_without_parameters_refuses_them(endpoint, path):
    assert ask(endpoint, f"{path}?room=1") == (400, {"error": "no parameter 'room'; allowed: none"})


def test_an_error_of_the_answer_itself_is_no_400(endpoint):
    def fail(text):
        raise ValueError(text)

    endpoint.routes["/x"] = Asked(fail)
    assert ask(endpoint, "/x?abc") == (500, {"error": "ValueError: abc"})
