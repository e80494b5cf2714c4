"""Sending without waiting, and noticing the end of the process at the other end."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from harness.servers import free_port
from sglang.srt.disaggregation.reliable.outbox import PEER_QUEUE, Outbox, PeerUnreachableError


class Watched:
    """An outbox whose peers' losses are noted, each with its time."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.lost: list[tuple[str, float]] = []
        self.outbox = Outbox(self.context, lambda address, _: self.lost.append((address, time.monotonic())))
        self._thread = threading.Thread(target=self.outbox.watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.outbox.stop()
        self._thread.join(5)
        assert not self._thread.is_alive()
        self.context.destroy(linger=0)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.close()


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


class Peer:
    """Listens at the address until it is closed."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.PULL)
        self.socket.bind(address)

    def received(self) -> list[bytes]:
        assert self.socket.poll(5000), "nothing came"
        return self.socket.recv_multipart()

    def close(self) -> None:
        self._context.destroy(linger=0)


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_messages_arrive_in_order(watched: Watched, address: str):
    peer = Peer(address)
    for number in range(100):
        watched.outbox.send(address, [b"a", b"%d" % number])
    assert [peer.received() for _ in range(100)] == [[b"a", b"%d" % number] for number in range(100)]
    peer.close()


def test_a_full_queue_is_an_error_and_no_wait(watched: Watched, address: str):
    start = time.monotonic()
    for _ in range(PEER_QUEUE):
        watched.outbox.send(address, [b"a"])
    with pytest.raises(PeerUnreachableError, match=address):
        watched.outbox.send(address, [b"a"])
    assert time.monotonic() - start < 1


def test_a_peer_that_dies_is_noticed_once_within_a_second_and_its_socket_closed(watched: Watched, address: str):
    peer = Peer(address)
    watched.outbox.send(address, [b"a"])
    peer.received()
    peer.close()
    died = time.monotonic()
    wait_until(lambda: bool(watched.lost))
    assert watched.lost[0][0] == address
    print(f"noticed after {watched.lost[0][1] - died:.2f} s")
    assert watched.lost[0][1] - died < 1
    assert len(watched.outbox) == 0
    time.sleep(1)
    assert len(watched.lost) == 1


def test_a_peer_that_was_never_there_is_noticed_too(watched: Watched, address: str):
    watched.outbox.connect(address)
    wait_until(lambda: bool(watched.lost))


def test_a_connection_that_comes_back_at_once_is_no_loss(watched: Watched, address: str):
    peer = Peer(address)
    watched.outbox.send(address, [b"a"])
    peer.received()
    peer.close()
    peer = Peer(address)
    time.sleep(1)
    watched.outbox.send(address, [b"b"])
    assert peer.received() == [b"b"]
    assert not watched.lost
    peer.close()


def test_a_peer_that_came_back_after_its_loss_is_reached_and_lost_again(watched: Watched, address: str):
    for _ in range(2):
        peer = Peer(address)
        watched.outbox.send(address, [b"a"])
        peer.received()
        before = len(watched.lost)
        peer.close()
        wait_until(lambda before=before: len(watched.lost) > before)


def test_closing_gives_back_every_descriptor(watched: Watched, address: str):
    peer = Peer(address)
    watched.outbox.send(address, [b"a"])
    watched.outbox.close(address)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        watched.outbox.send(address, [b"a"])
        watched.outbox.close(address)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2)
    peer.close()
    assert not watched.lost
