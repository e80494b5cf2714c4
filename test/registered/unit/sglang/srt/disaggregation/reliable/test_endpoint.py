"""A rank's own HTTP port."""

import http.client
import json
import socket
import threading
import time

import pytest

from sglang.srt.disaggregation.reliable import endpoint as module
from sglang.srt.disaggregation.reliable.endpoint import THREAD, Endpoint, Shared
from sglang_pd import ration


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


def counting(endpoint, path="/a", size=0):
    """A shared answer that tells how often it was made."""
    made = []

    def answer():
        made.append(1)
        return {"number": len(made), "more": "x" * size}

    endpoint.routes[path] = Shared(answer)
    return made


def test_a_crowd_shares_an_answer(endpoint):
    made, start = counting(endpoint), time.monotonic()
    numbers = [json.loads(ask(endpoint, "/a")[1])["number"] for _ in range(60)]
    assert len(made) <= ration.BURST + ration.RATE * (time.monotonic() - start) + 1
    assert numbers == sorted(numbers)
    assert numbers[-1] == len(made)


def test_who_asks_now_and_then_gets_a_new_answer(endpoint):
    counting(endpoint)
    assert [json.loads(ask(endpoint, "/a")[1])["number"] for _ in range(4)] == [1, 2, 3, 4]


def test_a_shared_answer_takes_no_query_either(endpoint):
    counting(endpoint)
    for _ in range(20):
        ask(endpoint, "/a")
    assert ask(endpoint, "/a?x=1")[0] == 400
    assert ask(endpoint, "/b")[0] == 404


def test_the_others_are_answered_during_a_crowd(endpoint):
    counting(endpoint)
    endpoint.routes["/b"] = lambda: {"fresh": True}
    for _ in range(20):
        ask(endpoint, "/a")
        assert json.loads(ask(endpoint, "/b")[1]) == {"fresh": True}


def test_a_large_answer_arrives_whole_however_slowly_it_is_read(endpoint):
    counting(endpoint, size=8 << 20)
    for _ in range(8):
        ask(endpoint, "/a")
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as slow:
        slow.sendall(b"GET /a HTTP/1.0\r\n\r\n")
        text = b""
        while part := slow.recv(1 << 16):
            text += part
    assert len(json.loads(text.partition(b"\r\n\r\n")[2])["more"]) == 8 << 20


def test_one_that_does_not_read_its_answer_holds_up_nobody(endpoint):
    counting(endpoint, size=8 << 20)
    endpoint.routes["/b"] = dict
    for _ in range(8):
        ask(endpoint, "/a")
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as deaf:
        deaf.sendall(b"GET /a HTTP/1.0\r\n\r\n")
        assert deaf.recv(1) == b"H"
        start = time.monotonic()
        assert ask(endpoint, "/b")[0] == 200
        assert time.monotonic() - start < module.SILENT_S


def test_many_at_once_are_all_answered(endpoint):
    counting(endpoint)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(endpoint, "/a")[0])) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == [200] * 64


def test_a_request_that_comes_in_pieces_is_answered(endpoint):
    counting(endpoint)
    for _ in range(10):
        ask(endpoint, "/a")
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as slow:
        slow.sendall(b"GET /a HT")
        time.sleep(0.05)
        slow.sendall(b"TP/1.0\r\nHost: x\r\n\r\n")
        assert b" 200 " in slow.recv(4096)


def test_a_client_that_leaves_at_once_does_not_end_the_thread(endpoint):
    endpoint.routes["/a"] = dict
    for _ in range(20):
        socket.create_connection(("127.0.0.1", endpoint.port)).close()
    assert ask(endpoint, "/a")[0] == 200
    assert endpoint.supervisor.states()[THREAD].restarts == 0
