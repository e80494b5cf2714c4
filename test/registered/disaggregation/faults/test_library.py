"""Each fault of the library does what it says: a matrix whose faults do nothing would pass."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import zmq

from harness.faults import frames, nixl_calls, signals, sockets
from harness.faults.http_proxy import HttpProxy
from harness.faults.relay import HOST, Relay

METADATA = [b"NixlMsgGuard", b"17", b"127.0.0.1", b"99", b"agent", b"\0\0\0\0", b"0", b"1"]
STATUS = [b"KV_STATUS", b"17", b"4", b"0", b""]
SOON_MS = 2000
QUIET_MS = 100


class Ends:
    """Both ends of a relay: what "decode" (at :data:`METADATA`'s address) sends, and what comes out."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self.relay = Relay()
        self.prefill, prefill_port = self._inlet()
        self.decode, decode_port = self._inlet()
        self.relay.serve_prefill((HOST, prefill_port))
        self.address = (HOST, decode_port)
        self.relay.serve_decode(self.address)
        self.to_prefill = self._outlet(self.relay.port)

    def _inlet(self) -> tuple[zmq.Socket, int]:
        inlet = self._context.socket(zmq.PULL)
        return inlet, inlet.bind_to_random_port(f"tcp://{HOST}")

    def _outlet(self, port: int) -> zmq.Socket:
        outlet = self._context.socket(zmq.PUSH)
        outlet.connect(f"tcp://{HOST}:{port}")
        return outlet

    def metadata(self, room: int = 17) -> list[bytes]:
        return [METADATA[0], b"%d" % room, METADATA[2], b"%d" % self.address[1], *METADATA[4:]]

    def close(self) -> None:
        self.relay.close()
        self._context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def received(inlet: zmq.Socket, count: int) -> list[list[bytes]]:
    """The next ``count`` messages; after them none comes."""
    found = []
    for _ in range(count):
        assert inlet.poll(SOON_MS), f"{len(found)} of {count} messages"
        found.append(inlet.recv_multipart())
    assert not inlet.poll(QUIET_MS), inlet.recv_multipart()
    return found


def rooms(messages: list[list[bytes]]) -> list[int]:
    return [int(message[1]) for message in messages]


def test_messages_pass_and_decodes_address_becomes_the_relays(ends: Ends):
    ends.to_prefill.send_multipart(ends.metadata())
    (message,) = received(ends.prefill, 1)
    assert message[:3] == METADATA[:3]
    assert message[4:] == METADATA[4:]
    back = ends._outlet(int(message[3]))
    back.send_multipart(STATUS)
    assert received(ends.decode, 1) == [STATUS]


def test_drop(ends: Ends):
    rule = ends.relay.rule("metadata", frames.drop, room=18)
    for room in (17, 18, 18):
        ends.to_prefill.send_multipart(ends.metadata(room))
    assert rooms(received(ends.prefill, 2)) == [17, 18]
    assert rule.hits == 1


def test_duplicate(ends: Ends):
    ends.relay.rule("metadata", frames.duplicate)
    ends.to_prefill.send_multipart(ends.metadata())
    assert rooms(received(ends.prefill, 2)) == [17, 17]


def test_delay(ends: Ends):
    ends.relay.rule("metadata", frames.delay(0.2))
    start = time.monotonic()
    ends.to_prefill.send_multipart(ends.metadata())
    received(ends.prefill, 1)
    assert 0.2 <= time.monotonic() - start < 1


def test_a_reordered_message_comes_after_the_next_one(ends: Ends):
    ends.relay.rule("metadata", frames.reorder)
    for room in (17, 18):
        ends.to_prefill.send_multipart(ends.metadata(room))
    assert rooms(received(ends.prefill, 2)) == [18, 17]


def test_a_reordered_message_is_only_late_where_no_other_comes(ends: Ends):
    ends.relay.rule("metadata", frames.reorder)
    ends.to_prefill.send_multipart(ends.metadata(17))
    assert rooms(received(ends.prefill, 1)) == [17]
    ends.to_prefill.send_multipart(ends.metadata(18))
    assert rooms(received(ends.prefill, 1)) == [18]


def test_hold_and_release(ends: Ends):
    rule = ends.relay.rule("metadata", frames.hold, times=2)
    for room in (17, 18, 19):
        ends.to_prefill.send_multipart(ends.metadata(room))
    assert rule.wait()
    assert rooms(received(ends.prefill, 1)) == [19]
    ends.relay.release()
    assert rooms(received(ends.prefill, 2)) == [17, 18]


@pytest.mark.parametrize("action", [frames.corrupt, frames.corrupt_tag, frames.cut_off])
def test_a_spoiled_message_is_none_of_the_protocol(ends: Ends, action):
    from sglang.srt.disaggregation.reliable import wire

    ends.relay.rule("metadata", action)
    ends.to_prefill.send_multipart(ends.metadata())
    (message,) = received(ends.prefill, 1)
    with pytest.raises(wire.ParseError):
        wire.parse_to_prefill(message)


def test_a_broken_connection_is_made_anew(ends: Ends):
    ends.to_prefill.send_multipart(ends.metadata(17))
    received(ends.prefill, 1)
    port = ends.relay.port
    ends.relay.break_to_prefill()
    assert ends.relay.port == port
    ends.to_prefill.send_multipart(ends.metadata(18))
    assert 18 in rooms(received(ends.prefill, 1))


@pytest.fixture
def bootstrap() -> Iterator[HttpProxy]:
    """A proxy before a server that answers "ok"."""
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = HttpProxy(server.server_port)
        yield proxy
        proxy.close()
        server.shutdown()


def get(bootstrap: HttpProxy) -> bytes:
    with urllib.request.urlopen(f"http://{HOST}:{bootstrap.port}/", timeout=0.5) as answer:
        return answer.read()


def test_the_bootstrap_server_answers_through_its_proxy(bootstrap: HttpProxy):
    assert get(bootstrap) == b"ok"


@pytest.mark.parametrize(("mode", "error"), [("refuse", OSError), ("hang", TimeoutError)])
def test_the_bootstrap_server_fails_as_told(bootstrap: HttpProxy, mode: str, error: type[Exception]):
    bootstrap.mode = mode
    with pytest.raises((error, urllib.error.URLError)):
        get(bootstrap)
    bootstrap.mode = "pass"
    bootstrap.sever()
    assert get(bootstrap) == b"ok"


class Agent:
    def transfer(self, handle: str) -> str:
        return f"real {handle}"


def test_the_nth_call_raises_nixls_error():
    agent = Agent()
    injection = nixl_calls.inject(agent, "transfer", nixl_calls.Raise("nixlRemoteDisconnectError"), first=2, times=1)
    assert agent.transfer("a") == "real a"
    with pytest.raises(Exception, match="injected") as raised:
        agent.transfer("b")
    assert type(raised.value).__name__ == "nixlRemoteDisconnectError"
    assert agent.transfer("c") == "real c"
    assert injection.undo() == 1
    assert vars(agent) == {}


@pytest.mark.parametrize("name", nixl_calls.ERRORS)
def test_nixl_has_the_error(name: str):
    with pytest.raises(Exception, match="injected"):
        nixl_calls.Raise(name)(lambda: None)


def test_calls_answer_and_wait():
    agent = Agent()
    injection = nixl_calls.inject(agent, "transfer", nixl_calls.Answer("PROC"))
    assert [agent.transfer("a"), agent.transfer("b")] == ["PROC", "PROC"]
    injection.undo()
    nixl_calls.inject(agent, "transfer", nixl_calls.Delay(0.05))
    start = time.monotonic()
    assert agent.transfer("a") == "real a"
    assert time.monotonic() - start >= 0.05


def test_a_severed_connection_is_dead_at_both_ends():
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        with other:
            ends = (client.getsockname(), client.getpeername())
            assert ends in sockets.connections()
            assert sockets.sever([ends]) == 1
            other.settimeout(1)
            assert other.recv(1) == b""
            with pytest.raises(BrokenPipeError):
                client.send(b"x")


def test_connections_in_common_are_those_of_no_control_port():
    data, control = ((HOST, 1), (HOST, 2)), ((HOST, 3), (HOST, 9))
    theirs = {(other, own) for own, other in (data, control)}
    assert sockets.common({data, control, ((HOST, 5), (HOST, 6))}, theirs, {9}) == [data]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process
    process.kill()
    process.wait()


def test_signals_have_arrived_when_they_return(process: subprocess.Popen[bytes]):
    signals.stop(process.pid)
    assert signals.state(process.pid) == "T"
    with signals.stopped(process.pid):
        assert signals.state(process.pid) == "T"
    signals.kill(process.pid)
    assert signals.state(process.pid) == "Z"
    assert process.wait() == -signal.SIGKILL
    signals.kill(process.pid)
    assert signals.state(os.getpid()) in "RS"


def test_the_other_end_of_a_killed_process_is_closed_at_once():
    code = (
        "import socket, signal; server = socket.create_server(('127.0.0.1', 0));"
        "print(server.getsockname()[1], flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        signals.kill(process.pid)
        with socket.socket() as probe:
            assert probe.connect_ex((HOST, port)) != 0
