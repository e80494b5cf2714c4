"""Lanes: order within a room, isolation between peers, threads given back."""

import threading
import time
from dataclasses import dataclass

from sglang.srt.disaggregation.reliable.lanes import Lane, Lanes, Peers


@dataclass
class Chunk:
    room: int
    number: int = 0


def wait_until(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


A, B = frozenset({"a"}), frozenset({"b"})


def always(peers: Peers, chunk: Chunk, since: float) -> bool:
    return True


def unexpected(chunk: Chunk, error: Exception) -> None:
    raise AssertionError(chunk) from error


def test_chunks_of_a_room_stay_in_order():
    done: list[Chunk] = []

    def work(peers: Peers, lane: Lane) -> None:
        while True:
            done.append(lane.get())

    lanes = Lanes(4, work, always, unexpected)
    sent = [Chunk(room, number) for number in range(50) for room in range(8)]
    for chunk in sent:
        lanes.put(A, chunk)
    wait_until(lambda: len(done) == len(sent))
    for room in range(8):
        assert [chunk.number for chunk in done if chunk.room == room] == list(range(50))


def test_a_stuck_peer_holds_up_no_other():
    stuck, done = threading.Event(), []

    def work(peers: Peers, lane: Lane) -> None:
        while True:
            chunk = lane.get()
            if peers == A:
                stuck.wait()
            done.append(chunk)

    lanes = Lanes(1, work, always, unexpected)
    lanes.put(A, Chunk(1))
    lanes.put(B, Chunk(2))
    wait_until(lambda: done == [Chunk(2)])
    stuck.set()
    wait_until(lambda: len(done) == 2)


def test_an_idle_lane_gives_its_thread_back_and_opens_again():
    done: list[Chunk] = []

    def work(peers: Peers, lane: Lane) -> None:
        while True:
            done.append(lane.get())

    lanes = Lanes(1, work, always, unexpected, idle_s=0.01)
    for number in range(20):
        lanes.put(A, Chunk(1, number))
        time.sleep(0.005 * (number % 4))
    wait_until(lambda: len(lanes) == 0)
    lanes.put(A, Chunk(1, 20))
    wait_until(lambda: [chunk.number for chunk in done] == list(range(21)))


def test_refused_chunks_reach_no_worker():
    done: list[Chunk] = []

    def work(peers: Peers, lane: Lane) -> None:
        while True:
            done.append(lane.get())

    lanes = Lanes(1, work, lambda peers, chunk, since: chunk.number != 1, unexpected)
    for number in range(3):
        lanes.put(A, Chunk(1, number))
    wait_until(lambda: done == [Chunk(1, 0), Chunk(1, 2)])


def test_a_worker_that_dies_fails_its_room_and_goes_on():
    done, failed = [], []

    def work(peers: Peers, lane: Lane) -> None:
        while True:
            chunk = lane.get()
            if chunk.number == 0:
                raise KeyError("unforeseen")
            done.append(chunk)

    lanes = Lanes(1, work, always, lambda chunk, error: failed.append((chunk, repr(error))))
    lanes.put(A, Chunk(1, 0))
    lanes.put(A, Chunk(2, 1))
    wait_until(lambda: done == [Chunk(2, 1)])
    assert failed == [(Chunk(1, 0), "KeyError('unforeseen')")]
