"""A decode that stops (SIGSTOP) holds up its own rooms and no other, and they end in time with the true reason."""

import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, TCP, TRANSFERRING, WAITING, Nursery, Pair, RoleProcess

TIMEOUT_S = 3.0
PAGES = list(range(64))
ROOMS = 8
# Upstream shards peers over this many workers by their port.
UPSTREAM_WORKERS = 4


@pytest.fixture
def pair(nursery: Nursery) -> Iterator[Pair]:
    pair = Pair(nursery, SGLANG_PD_TRANSFER_TIMEOUT=str(TIMEOUT_S), **TCP)
    yield pair
    pair.close()


@pytest.fixture
def hung(pair: Pair) -> Iterator[RoleProcess]:
    """A second decode, one that upstream gives the same worker as the first."""
    while True:
        decode = pair.add_decode(pair.decode.spec.environment)
        if (decode.info["port"] - pair.decode.info["port"]) % UPSTREAM_WORKERS == 0:
            break
        decode.close()
    yield decode
    decode.close()


def send_and_stop(pair: Pair, hung: RoleProcess) -> list[int]:
    """Rooms for the second decode are ready; it stops, and then prefill sends them all."""
    pair.transfer(decode=hung)
    rooms = [pair.room() for _ in range(ROOMS)]
    for room in rooms:
        pair.open(room, len(PAGES), hung)
    for room in rooms:
        assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    hung.signal(signal.SIGSTOP)
    for room in rooms:
        pair.prefill.call("send", room, PAGES, 0)
    return rooms


def test_the_other_decode_does_not_notice(pair: Pair, hung: RoleProcess):
    pair.transfer()
    before = statistics.median(pair.transfer(pages=64) for _ in range(10))
    rooms = send_and_stop(pair, hung)
    during = [pair.transfer(pages=64) for _ in range(10)]
    print(f"a room of the other decode: {before:.3f} s before, {statistics.median(during):.3f} s while one hangs")
    assert max(during) < before + 1
    assert {pair.prefill.call("poll", room) for room in rooms} <= {WAITING, TRANSFERRING}


def test_its_rooms_end_in_time_with_the_true_reason(pair: Pair, hung: RoleProcess):
    start = time.monotonic()
    rooms = send_and_stop(pair, hung)
    for room in rooms:
        assert pair.prefill.call("wait", room, [FAILED, SUCCESS], 2 * TIMEOUT_S)[0] == FAILED
    waited = time.monotonic() - start
    reasons = {pair.prefill.call("failure", room) for room in rooms}
    print(f"{ROOMS} rooms ended after {waited:.2f} s of {TIMEOUT_S:g}: {reasons}")
    assert waited < TIMEOUT_S + 1
    assert all("stopped or is unreachable" in reason for reason in reasons)
    assert pair.transfer() < 1

    start = time.monotonic()
    hung.signal(signal.SIGCONT)
    for failed in rooms:
        assert hung.call("wait", failed, [FAILED], 5.0)[0] == FAILED
        assert "unreachable" in hung.call("failure", failed)
    print(f"it knew {time.monotonic() - start:.3f} s after it went on")
    assert pair.transfer(decode=hung) < 1


def test_a_short_stop_loses_nothing(pair: Pair, hung: RoleProcess):
    rooms = send_and_stop(pair, hung)
    time.sleep(TIMEOUT_S / 3)
    hung.signal(signal.SIGCONT)
    for room in rooms:
        assert hung.call("wait", room, [FAILED, SUCCESS], 5.0)[0] == SUCCESS
        assert pair.prefill.call("wait", room, [FAILED, SUCCESS], 5.0)[0] == SUCCESS


def test_a_killed_decode_is_named(pair: Pair, hung: RoleProcess):
    rooms = send_and_stop(pair, hung)
    hung.signal(signal.SIGKILL)
    start = time.monotonic()
    for room in rooms:
        assert pair.prefill.call("wait", room, [FAILED, SUCCESS], 2 * TIMEOUT_S)[0] == FAILED
    reasons = {pair.prefill.call("failure", room) for room in rooms}
    print(f"prefill knew after {time.monotonic() - start:.2f} s: {reasons}")
    assert time.monotonic() - start < TIMEOUT_S + 1
    assert pair.transfer() < 1


def test_pages_that_do_not_match_fail_the_room(pair: Pair):
    room = pair.room()
    pair.open(room, pages=4)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.prefill.call("send", room, PAGES, 0)
    for role in (pair.prefill, pair.decode):
        assert role.call("wait", room, [FAILED, SUCCESS], 5.0)[0] == FAILED
        assert "64 pages" in role.call("failure", room)
    assert pair.transfer() < 1
