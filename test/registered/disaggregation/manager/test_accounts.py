"""Every room ends once in each side's ledger, with its reason; a phase that lasts too long ends it too."""

import signal
from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, TCP, WAITING, Nursery, Pair
from sglang.srt.disaggregation.reliable.report import LoggedRoom, parse_warning_line

PAGES = list(range(16))
# Far below upstream's 300 s, which stay as they are: what ends a room here is ours.
DEADLINES = {
    "SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT": "1.0",
    "SGLANG_PD_PREFILL_WAITING_TIMEOUT": "1.5",
    "SGLANG_PD_DECODE_ALLOCATING_TIMEOUT": "1.0",
    "SGLANG_PD_DECODE_WAITING_TIMEOUT": "1.0",
    "SGLANG_PD_DECODE_FINISHING_TIMEOUT": "1.0",
}


@pytest.fixture(scope="module")
def pair(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("needs our classes: upstream keeps no accounts")
    pair = Pair(nursery, **DEADLINES, **TCP)
    pair.transfer()
    yield pair
    pair.close()


@pytest.fixture
def room(pair: Pair) -> Iterator[int]:
    """A room's number; afterwards nothing is live on either side and the next room succeeds."""
    yield pair.room()
    for role in (pair.prefill, pair.decode):
        assert role.call("live") == 0
    assert pair.transfer() < 1


def ends(pair: Pair, side: str, room: int) -> LoggedRoom:
    """How the room ended on that side: exactly once."""
    lines = [parse_warning_line(line) for line in getattr(pair, side).call("ended")]
    found = [line for line in lines if line.room == room]
    assert len(found) == 1, found
    return found[0]


def reasons(pair: Pair, room: int) -> tuple[str, str]:
    return str(ends(pair, "prefill", room).reason), str(ends(pair, "decode", room).reason)


def fails(pair: Pair, side: str, room: int, within_s: float) -> None:
    role = getattr(pair, side)
    status, waited = role.call("wait", room, [FAILED], 10.0)
    print(f"{side} knew after {waited:.3f} s: {role.call('failure', room)}")
    assert status == FAILED
    assert waited < within_s


def test_a_room_that_succeeds(pair: Pair, room: int):
    pair.transfer(room, pages=16)
    prefill, decode = ends(pair, "prefill", room), ends(pair, "decode", room)
    assert (prefill.reason, decode.reason) == ("delivered", "delivered")
    assert list(prefill.phase_seconds) == ["bootstrapping", "waiting", "transferring"]
    assert prefill.pages == decode.pages == 16
    assert prefill.bytes == decode.bytes == 16 * pair.prefill.spec.page_bytes * 2 * pair.prefill.spec.layers
    assert decode.peer
    assert prefill.peer


def test_prefill_abort(pair: Pair, room: int):
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.prefill.call("abort", room)
    fails(pair, "decode", room, within_s=1)
    pair.prefill.call("clear", room)
    assert reasons(pair, room) == ("client_abort", "prefill_abort")


def test_decode_abort(pair: Pair, room: int):
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.decode.call("abort", room)
    fails(pair, "prefill", room, within_s=1)
    pair.decode.call("clear", room)
    assert reasons(pair, room) == ("decode_abort", "client_abort")


def test_metadata_never_comes(pair: Pair, room: int):
    pair.prefill.call("open", room)
    pair.decode.call("open", room)
    fails(pair, "prefill", room, within_s=2)
    fails(pair, "decode", room, within_s=2)
    assert ends(pair, "prefill", room).reason == "metadata_timeout"


def test_prefill_never_sends(pair: Pair, room: int):
    """Decode's deadline is the shorter one here; prefill is told, and does not wait for its own."""
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    fails(pair, "decode", room, within_s=2)
    fails(pair, "prefill", room, within_s=1)
    assert reasons(pair, room) == ("prefill_never_sent", "prefill_never_sent")


def test_success_without_its_auxiliary_write(pair: Pair, room: int):
    """The scheduler takes such a success for a transfer that goes on, and asks again."""
    source, slot = list(range(8)), room % pair.decode.spec.aux_slots
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    pair.prefill.call("send", room, source, slot)
    for role in (pair.decode, pair.prefill):
        assert role.call("wait", room, [SUCCESS], 5.0)[0] == SUCCESS
    pair.prefill.call("clear", room)
    fails(pair, "decode", room, within_s=2)
    assert reasons(pair, room) == ("delivered", "aux_missing")


def test_prefill_never_sends_and_decode_hangs(pair: Pair, room: int, nursery: Nursery):
    """Nobody tells prefill: its own deadline ends the room, where upstream waits for ever."""
    decode = pair.add_decode({**DEADLINES, **TCP})
    pair.open(room, decode=decode)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    decode.signal(signal.SIGSTOP)
    fails(pair, "prefill", room, within_s=3)
    assert ends(pair, "prefill", room).reason == "send_timeout"
    decode.close()


def test_decode_is_gone(pair: Pair, room: int, nursery: Nursery):
    decode = pair.add_decode({**DEADLINES, **TCP})
    pair.open(room, decode=decode)
    assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    decode.close()
    fails(pair, "prefill", room, within_s=1)
    assert ends(pair, "prefill", room).reason == "peer_lost"


def test_prefill_is_gone(nursery: Nursery):
    """Decode knows at once, and forgets where it was."""
    pair = Pair(nursery, **TCP)
    room = pair.room()
    pair.open(room)
    pair.prefill.close()
    fails(pair, "decode", room, within_s=1)
    assert ends(pair, "decode", room).reason == "peer_lost"
    pair.close()
