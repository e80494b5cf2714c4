"""Whoever gives a room up, and when: the other side knows within a second, and the next room is as good as any."""

from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, TCP, WAITING, Nursery, Pair

KNOWN_WITHIN_S = 1.0
# Upstream's decode learns of an abort by this alone (300 s by default).
TIMEOUTS = {"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "8", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "8"}
PAGES = list(range(64))


@pytest.fixture(scope="module")
def pair(nursery: Nursery) -> Iterator[Pair]:
    pair = Pair(nursery, **TIMEOUTS, **TCP)
    pair.transfer()
    yield pair
    pair.close()


@pytest.fixture
def room(pair: Pair) -> Iterator[int]:
    """A room's number; afterwards both sides hold nothing and the next room succeeds."""
    yield pair.room()
    assert pair.transfer() < 1
    for role in (pair.prefill, pair.decode):
        assert role.call("info")["rooms"] == 0


def learns(pair: Pair, side: str, room: int) -> str:
    """Wait until the side knows that the room failed; returns its reason."""
    role = getattr(pair, side)
    status, waited = role.call("wait", room, [FAILED, SUCCESS], 20.0)
    assert status == FAILED
    reason = role.call("failure", room)
    print(f"{side} knew after {waited:.3f} s: {reason}")
    assert waited < KNOWN_WITHIN_S
    return reason


def test_prefill_aborts_before_the_metadata_comes(pair: Pair, room: int):
    pair.prefill.call("open", room)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    pair.decode.call("open", room)
    pair.decode.call("send_metadata", room, PAGES, 0)
    assert "aborted" in learns(pair, "decode", room)


def test_prefill_aborts_while_decode_has_no_pages_yet(pair: Pair, room: int):
    pair.prefill.call("open", room)
    pair.decode.call("open", room)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    assert "aborted" in learns(pair, "decode", room)


def test_prefill_aborts_before_it_sends(pair: Pair, room: int):
    pair.open(room)
    pair.prefill.call("wait", room, [WAITING], 5.0)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    assert "abort" in learns(pair, "decode", room).lower()


def test_prefill_aborts_between_chunks(pair: Pair, room: int):
    pair.open(room, pages=len(PAGES))
    pair.prefill.call("wait", room, [WAITING], 5.0)
    pair.prefill.call("send_part", room, PAGES, 16)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    assert "abort" in learns(pair, "decode", room).lower()


def test_prefill_aborts_behind_a_queue_of_chunks(pair: Pair, room: int):
    pair.open(room, pages=len(PAGES))
    pair.prefill.call("wait", room, [WAITING], 5.0)
    pair.prefill.call("send", room, PAGES, 0, 1)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    assert "abort" in learns(pair, "decode", room).lower()


def test_decode_aborts_before_prefill_has_the_request(pair: Pair, room: int):
    before = pair.prefill.call("messages")
    pair.decode.call("open", room)
    pair.decode.call("abort", room)
    pair.decode.call("clear", room)
    pair.prefill.call("wait_for_message", before)
    pair.prefill.call("open", room)
    assert "decode aborted" in learns(pair, "prefill", room)


def test_decode_aborts_before_prefill_sends(pair: Pair, room: int):
    pair.open(room)
    pair.decode.call("abort", room)
    pair.decode.call("clear", room)
    assert "abort" in learns(pair, "prefill", room).lower()


def test_an_aborted_room_id_may_be_used_again(pair: Pair, room: int):
    before = pair.decode.call("messages")
    pair.prefill.call("open", room)
    pair.prefill.call("abort", room)
    pair.prefill.call("clear", room)
    pair.decode.call("wait_for_message", before)
    assert pair.transfer(room) < 1


def test_both_abort(pair: Pair, room: int):
    pair.open(room)
    for role in (pair.decode, pair.prefill):
        role.call("abort", room)
        role.call("abort", room)
        role.call("clear", room)


def test_prefill_waits_too_long_and_says_so(nursery: Nursery):
    pair = Pair(nursery, prefill={"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "1"}, **TCP)
    pair.transfer()
    room = pair.room()
    pair.prefill.call("open", room)
    pair.decode.call("open", room)
    assert pair.prefill.call("wait", room, [FAILED], 5.0)[0] == FAILED
    pair.prefill.call("failure", room)
    assert "too long" in learns(pair, "decode", room)
    pair.close()
