"""Lanes: order, isolation between peers, threads given back."""

import threading
import time
from collections.abc import Callable

import pytest

from sglang.srt.disaggregation.reliable.lanes import Inbox, Lanes, Peers

A, B = frozenset({"a"}), frozenset({"b"})


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def collecting(done: list, idle_s: float = 60.0) -> Callable[[Peers, Inbox, Callable[[], bool]], None]:
    def work(peers: Peers, inbox: Inbox, closed: Callable[[], bool]) -> None:
        while True:
            came = inbox.take(idle_s)
            if not came and closed():
                return
            done.extend((peers, item) for item in came)

    return work


def test_what_comes_for_a_peer_stays_in_order():
    done: list = []
    lanes = Lanes(collecting(done))
    for number in range(500):
        lanes.put(A if number % 2 else B, number)
    wait_until(lambda: len(done) == 500)
    for peers in (A, B):
        found = [item for whose, item in done if whose == peers]
        assert found == sorted(found)


def test_a_stuck_peer_holds_up_no_other():
    stuck, done = threading.Event(), []

    def work(peers: Peers, inbox: Inbox, closed: Callable[[], bool]) -> None:
        while True:
            for item in inbox.take(60):
                if peers == A:
                    stuck.wait()
                done.append(item)

    lanes = Lanes(work)
    lanes.put(A, 1)
    lanes.put(B, 2)
    wait_until(lambda: done == [2])
    stuck.set()
    wait_until(lambda: done == [2, 1])


def test_an_idle_lane_gives_its_thread_back_and_opens_again():
    done: list = []
    lanes = Lanes(collecting(done, idle_s=0.01))
    for number in range(20):
        lanes.put(A, number)
        time.sleep(0.005 * (number % 4))
    wait_until(lambda: len(lanes) == 0)
    lanes.put(A, 20)
    wait_until(lambda: [item for _, item in done] == list(range(21)))


def test_the_lane_of_a_peer_that_is_gone_ends_at_once():
    done: list = []
    lanes = Lanes(collecting(done))
    lanes.put(A, 1)
    lanes.put(B, 2)
    wait_until(lambda: len(done) == 2)
    lanes.stop("a")
    wait_until(lambda: len(lanes) == 1)
    lanes.put(A, 3)
    wait_until(lambda: (A, 3) in done)


def test_work_that_raises_is_started_again(caplog: pytest.LogCaptureFixture):
    done: list = []

    def work(peers: Peers, inbox: Inbox, closed: Callable[[], bool]) -> None:
        while True:
            for item in inbox.take(60):
                if item == 1:
                    raise RuntimeError("injected")
                done.append(item)

    lanes = Lanes(work)
    lanes.put(A, 1)
    wait_until(lambda: "injected" in caplog.text)
    lanes.put(A, 3)
    wait_until(lambda: 3 in done)


def test_taking_waits_for_something_or_for_the_time():
    inbox: Inbox[int] = Inbox()
    start = time.monotonic()
    assert inbox.take(0.02) == []
    assert time.monotonic() - start >= 0.02
    assert inbox.take(0.0) == []
    threading.Timer(0.01, inbox.put, (1,)).start()
    assert inbox.take(5) == [1]
    assert time.monotonic() - start < 4
