"""A process that stops keeps its connections: the other side finds out by itself, and both are well afterwards.

All deadlines are as usual, minutes: only the silence ends these rooms.
"""

import signal
import time
from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, TCP, WAITING, Nursery, Pair, RoleProcess
from sglang.srt.disaggregation.reliable.report import parse_warning_line

SILENCE_S = 2.0
# A ping a second, and a look a second.
KNOWN_WITHIN_S = SILENCE_S + 3.0
PAGES = list(range(64))


@pytest.fixture(scope="module")
def pair(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("upstream has no sign of life but the heartbeat of decode's, and waits for its deadlines")
    pair = Pair(nursery, SGLANG_PD_SILENCE_TIMEOUT=str(SILENCE_S), **TCP)
    pair.transfer()
    yield pair
    pair.close()


@pytest.fixture
def room(pair: Pair) -> int:
    room = pair.room()
    pair.prefill.call("open", room)
    pair.decode.call("open", room)
    return room


def end(role: RoleProcess, room: int) -> str:
    """The reason that the room fails with there, in time."""
    start = time.monotonic()
    assert role.call("wait", room, [FAILED, SUCCESS], KNOWN_WITHIN_S)[0] == FAILED
    waited = time.monotonic() - start
    role.call("failure", room)
    (line,) = [line for line in map(parse_warning_line, role.call("ended")) if line.room == room]
    print(f"{role.spec.mode} knew after {waited:.2f} s of {SILENCE_S:g}: {line.reason}")
    return str(line.reason)


def goes_on(pair: Pair, stopped: RoleProcess, room: int) -> None:
    """The other side has given up the room; the one that stopped hears it, and the next room is as good as any."""
    stopped.signal(signal.SIGCONT)
    assert end(stopped, room) == "peer_failed"
    assert pair.transfer() < 1
    for role in (pair.prefill, pair.decode):
        assert role.call("live") == 0


def test_decode_stops_before_prefill_has_sent(pair: Pair, room: int):
    pair.decode.call("send_metadata", room, PAGES, 0)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.decode.signal(signal.SIGSTOP)
    assert end(pair.prefill, room) == "peer_silent"
    goes_on(pair, pair.decode, room)


def test_decode_stops_while_prefill_writes(pair: Pair, room: int):
    pair.decode.call("send_metadata", room, PAGES, 0)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.decode.signal(signal.SIGSTOP)
    pair.prefill.call("send", room, PAGES, 0)
    assert end(pair.prefill, room) == "peer_silent"
    goes_on(pair, pair.decode, room)


def test_prefill_stops(pair: Pair, room: int):
    pair.decode.call("send_metadata", room, PAGES, 0)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.prefill.signal(signal.SIGSTOP)
    assert end(pair.decode, room) == "peer_silent"
    goes_on(pair, pair.prefill, room)


def test_a_room_that_comes_while_it_is_silent_ends_too(pair: Pair, room: int):
    pair.prefill.signal(signal.SIGSTOP)
    assert end(pair.decode, room) == "peer_silent"
    later = pair.room()
    pair.decode.call("open", later)
    start = time.monotonic()
    assert end(pair.decode, later) == "peer_silent"
    assert time.monotonic() - start < SILENCE_S
    goes_on(pair, pair.prefill, room)


def test_a_process_that_was_stopped_itself_blames_nobody(pair: Pair, room: int):
    pair.decode.call("send_metadata", room, PAGES, 0)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    for role in (pair.prefill, pair.decode):
        role.signal(signal.SIGSTOP)
    time.sleep(KNOWN_WITHIN_S)
    for role in (pair.prefill, pair.decode):
        role.signal(signal.SIGCONT)
    pair.prefill.call("send", room, PAGES, 0)
    for role in (pair.prefill, pair.decode):
        assert role.call("wait", room, [FAILED, SUCCESS], 5.0)[0] == SUCCESS
        role.call("clear", room)
