"""One GET, whatever the other side does: it answers, refuses, hangs, drips, or talks nonsense."""

import contextlib
import socket
import threading
import time
from email.message import Message

import pytest

from sglang_pd.doctor.fetch import check_url, clock_difference, get
from sglang_pd.doctor.paths import OVER
from sglang_pd.doctor.tasks import Deadline
from sglang_pd.errors import UserError

DATE = "Date: Fri, 15 Jan 2027 08:00:00 GMT\r\n"


@contextlib.contextmanager
def speaking(*pieces, every=0.0):
    """A server that says these pieces to whoever connects, and then closes; yields its URL and what it was asked."""
    asked = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536).decode())
                    for piece in pieces:
                        connection.sendall(piece.encode())
                        time.sleep(every)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked


def answer(body, kind="application/json"):
    return f"HTTP/1.1 200 OK\r\n{DATE}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def test_json_and_text():
    with speaking(answer('{"room": 9223372036854775807}')) as (url, asked):
        reply = get(url, "/pd/rooms?state=live", Deadline(5), "the-key")
    assert (reply.status, reply.body, reply.problem) == (200, {"room": 2**63 - 1}, None)
    assert asked[0].startswith("GET /pd/rooms?state=live HTTP/1.1\r\n")
    assert "Authorization: Bearer the-key\r\n" in asked[0]
    with speaking(answer("a 1\n", "text/plain")) as (url, asked):
        assert get(url, "/metrics", Deadline(5)).body == "a 1\n"
    assert "Authorization" not in asked[0]


def test_what_says_that_it_is_json_and_is_not():
    with speaking(answer("{oops")) as (url, _):
        assert get(url, "/", Deadline(5)).body == "{oops"


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reply = get(f"http://127.0.0.1:{free.getsockname()[1]}", "/", Deadline(5))
    assert (reply.status, reply.problem) == (None, "connection refused: nothing listens there")


@pytest.mark.parametrize("pieces", [(), ("HTTP/1.1",), ("what?\r\n\r\n",)], ids=["nothing", "a bit", "nonsense"])
def test_one_that_breaks_off(pieces):
    with speaking(*pieces) as (url, _):
        reply = get(url, "/", Deadline(5))
    assert reply.status is None
    assert reply.problem is not None
    assert reply.problem.startswith("connected, but ")


def test_one_that_never_answers_costs_the_deadline_and_no_more():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        start = time.monotonic()
        reply = get(f"http://127.0.0.1:{mute.getsockname()[1]}", "/", Deadline(0.4))
    assert time.monotonic() - start < 0.4 + 0.5
    assert "connected, but no answer within" in (reply.problem or "")


def test_one_that_drips_costs_the_deadline_and_no_more():
    head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with speaking(head, *("x" * 100), every=0.05) as (url, _):
        start = time.monotonic()
        reply = get(url, "/", Deadline(0.5))
    assert time.monotonic() - start < 0.5 + 0.5
    assert (reply.status, reply.problem is not None) == (None, True)


def test_after_the_deadline_nobody_is_asked():
    assert get("http://127.0.0.1:1", "/", Deadline(0.0)).problem == OVER


@pytest.mark.parametrize(
    ("said", "sent", "received", "difference"),
    [
        ("Fri, 15 Jan 2027 08:00:00 GMT", 1_800_000_000.2, 1_800_000_000.4, 0.0),
        ("Fri, 15 Jan 2027 08:00:10 GMT", 1_800_000_000.2, 1_800_000_000.4, 9.6),
        ("Fri, 15 Jan 2027 07:59:50 GMT", 1_800_000_000.0, 1_800_000_000.4, -9.0),
        ("some day", 0.0, 0.0, None),
        (None, 0.0, 0.0, None),
    ],
)
def test_how_far_a_clock_is_off(said, sent, received, difference):
    headers = Message()
    if said is not None:
        headers["Date"] = said
    assert clock_difference(headers, sent, received) == difference


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://a:1", "http://a:1"),
        ("10.0.0.1:30000", "http://10.0.0.1:30000"),
        ("https://a", "https://a:443"),
        ("http://[::1]:5/", "http://[::1]:5"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_urls(given, url):
    assert check_url("--prefill", given) == url


@pytest.mark.parametrize(
    "given", ["", "http://", "http://a:b", "ftp://a:1", "http://a:1/v1", "http://joe:pw@a:1", "http://a?x=1"]
)
def test_what_is_no_url(given):
    with pytest.raises(UserError, match=r"--prefill .* is no URL.*; allowed: http://HOST:PORT"):
        check_url("--prefill", given)
