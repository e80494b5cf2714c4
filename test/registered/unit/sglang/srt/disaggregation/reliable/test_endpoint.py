"""A rank's own HTTP port."""

import http.client
import json
import socket

import pytest

from sglang.srt.disaggregation.reliable.endpoint import THREAD, Endpoint


@pytest.fixture
def endpoint():
    one = Endpoint()
    one.start()
    return one


def ask(endpoint, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


def test_a_route_is_answered_with_what_it_says_each_time(endpoint):
    numbers = iter(range(2))
    endpoint.routes["/a"] = lambda: {"number": next(numbers)}
    assert [json.loads(ask(endpoint, "/a")[1]) for _ in range(2)] == [{"number": 0}, {"number": 1}]


def test_an_unknown_path_is_told_which_there_are(endpoint):
    endpoint.routes |= {"/b": dict, "/a": dict}
    status, text = ask(endpoint, "/c")
    assert (status, json.loads(text)) == (404, {"error": "no such path; there are /a, /b"})


def test_it_only_answers(endpoint):
    assert ask(endpoint, "/a", "POST")[0] == 501


def test_a_route_that_fails_is_a_500_with_the_error_and_the_next_is_answered(endpoint, caplog):
    endpoint.routes |= {"/bad": lambda: {"ratio": 1 / 0}, "/good": dict}
    status, text = ask(endpoint, "/bad")
    assert (status, json.loads(text)) == (500, {"error": "ZeroDivisionError: division by zero"})
    assert ask(endpoint, "/good")[0] == 200
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_that_is_no_json_is_a_500_too(endpoint):
    endpoint.routes["/bad"] = lambda: {"set": {1}}
    status, text = ask(endpoint, "/bad")
    assert (status, json.loads(text)) == (500, {"error": "TypeError: Object of type set is not JSON serializable"})


def test_one_that_says_nothing_does_not_keep_the_others_waiting(endpoint):
    endpoint.routes["/a"] = dict
    with socket.create_connection(("127.0.0.1", endpoint.port)):
        assert ask(endpoint, "/a")[0] == 200


def test_garbage_is_refused_and_the_next_is_answered(endpoint):
    endpoint.routes["/a"] = dict
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as garbage:
        garbage.sendall(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert b"400" in garbage.recv(4096)
    assert ask(endpoint, "/a")[0] == 200
    assert endpoint.supervisor.states()[THREAD].restarts == 0


def test_only_this_machine_can_ask(endpoint):
    assert endpoint._server.server_address[0] == "127.0.0.1"
