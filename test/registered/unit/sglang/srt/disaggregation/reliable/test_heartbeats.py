"""When a prefill is asked, when it counts as gone, and that one which hangs delays no other."""

import socket
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import heartbeats
from sglang.srt.disaggregation.reliable.heartbeats import Heartbeats


def test_each_is_asked_once_an_interval():
    beats = Heartbeats(5.0, 2)
    assert not beats.is_due("a", 0.0)
    assert not beats.is_due("a", 4.9)
    assert beats.is_due("a", 5.0)
    beats.beat("a", 5.1)
    assert not beats.is_due("a", 10.0)
    assert beats.is_due("a", 10.1)


def test_so_many_misses_in_a_row_and_it_is_gone():
    beats = Heartbeats(5.0, 2)
    assert not beats.miss("a", 5.0)
    beats.beat("a", 10.0)
    assert not beats.miss("a", 15.0)
    assert beats.miss("a", 20.0)
    # One that comes back starts anew.
    assert not beats.is_due("a", 20.0)
    assert not beats.miss("a", 25.0)


def test_a_server_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch):
    hangs: Future[str] = Future()
    met: dict[str, threading.Event] = {"good": threading.Event()}
    gone = threading.Event()

    def ask(address: str) -> str:
        if address == "bad":
            raise ConnectionError("refused")
        return hangs.result(20) if address == "hung" else "0a1b2c3d@1"

    monkeypatch.setattr(heartbeats, "ask", ask)
    monkeypatch.setattr(heartbeats, "LOOK_S", 0.01)
    manager = SimpleNamespace(
        max_failures=2,
        heartbeat_interval=0.01,
        prefill_info_table={"hung": 1, "good": 1, "bad": 1},
        _heartbeat_shutdown=threading.Event(),
        met=lambda address, _: met[address].set(),
        _handle_node_failure=lambda address: address == "bad" and gone.set(),
    )
    thread = threading.Thread(target=heartbeats.beat_for_ever, args=(manager,), daemon=True)
    thread.start()
    assert met["good"].wait(10)
    assert gone.wait(10)
    manager._heartbeat_shutdown.set()
    hangs.cancel()
    thread.join(10)
    assert not thread.is_alive()


def test_what_is_no_answer(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError, match="refused"):
            heartbeats.ask(f"127.0.0.1:{closed.getsockname()[1]}")
