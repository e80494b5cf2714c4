"""What a stranger, a bug or an old peer may put on a control port stops nothing: it is counted, and rooms go on."""

import os
import time
from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, Nursery, Pair, RoleProcess, send_frames

GUARD = b"NixlMsgGuard"
TO_PREFILL = {
    "http": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], ("unknown", "foreign")),
    "empty": ([b""], ("unknown", "foreign")),
    "guard alone": ([GUARD], ("unknown", "truncated")),
    "cut-off registration": ([GUARD, b"None", b"10.0.0.1", b"99"], ("registration", "truncated")),
    "cut-off metadata": ([GUARD, b"12", b"10.0.0.1"], ("metadata", "truncated")),
    "room is no number": ([GUARD, b"12x", b"10.0.0.1", b"99", b"agent", b"", b"0", b"1"], ("metadata", "malformed")),
    "odd page list": ([GUARD, b"12", b"10.0.0.1", b"99", b"agent", b"123", b"0", b"1"], ("metadata", "malformed")),
    "bytes in the address": ([GUARD, b"12", b"\xff\xfe", b"99", b"agent", b"", b"0", b"1"], ("metadata", "malformed")),
    "registration of no agent": (
        [GUARD, b"None", b"127.0.0.1", b"99", b"agent", b"junk", b"", b"", b"", b"0", b"1", b"0", b"16384"],
        ("registration", "rejected"),
    ),
    "metadata of a stranger": ([GUARD, b"12", b"127.0.0.1", b"99", b"agent", b"", b"0", b"1"], ("metadata", "stale")),
    "abort of an unknown room": ([b"ABORT", b"4711"], ("abort", "stale")),
    "abort of no room": ([b"ABORT"], ("abort", "truncated")),
    "watermark of no staging": ([b"WATERMARK", b"1", b"2", b"x"], ("watermark", "rejected")),
    "cut-off watermark": ([b"WATERMARK"], ("watermark", "truncated")),
    "status at the wrong role": ([b"KV_STATUS", b"1", b"4", b"0", b""], ("unknown", "foreign")),
}
TO_DECODE = {
    "http": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], ("unknown", "foreign")),
    "empty": ([b""], ("unknown", "foreign")),
    "cut-off status": ([b"KV_STATUS", b"1"], ("status", "truncated")),
    "status out of range": ([b"KV_STATUS", b"1", b"7", b"0", b""], ("status", "malformed")),
    "status of an unknown room": ([b"KV_STATUS", b"4711", b"4", b"0", b""], ("status", "stale")),
    "staging without any": ([b"STAGING_REQ", b"1", b"0", b"8", b"agent"], ("staging_request", "rejected")),
    "cut-off staging": ([b"STAGING_REQ", b"1"], ("staging_request", "truncated")),
    "acknowledgement of nothing": ([b"ABORT_ACK", b"1", b"0", b"1"], ("abort_ack", "handled")),
    "chunk of an unknown room": ([b"CHUNK_READY", b"1", b"0", b"0", b"4", b"w"], ("chunk_ready", "handled")),
    "cut-off chunk": ([b"CHUNK_READY", b"1"], ("chunk_ready", "truncated")),
}


@pytest.fixture
def fresh(nursery: Nursery) -> Iterator[Pair]:
    pair = Pair(nursery)
    yield pair
    pair.close()


def survives(pair: Pair, role: RoleProcess, frames: list[bytes], expected: tuple[str, str]) -> None:
    before = role.call("messages")
    send_frames(role.address, frames)
    role.call("wait_for_message", before)
    after = role.call("messages")
    assert {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key)} == {expected: 1}
    assert all(restarts == 0 and up for up, restarts in role.call("control").values())
    assert pair.transfer() < 1


@pytest.mark.parametrize("name", TO_PREFILL)
def test_prefill_survives(pair: Pair, name: str):
    survives(pair, pair.prefill, *TO_PREFILL[name])


@pytest.mark.parametrize("name", TO_DECODE)
def test_decode_survives(pair: Pair, name: str):
    survives(pair, pair.decode, *TO_DECODE[name])


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_one_foreign_frame_and_the_next_room_goes_at_normal_speed(fresh: Pair, side: str):
    fresh.transfer()
    normal = min(fresh.transfer() for _ in range(3))
    send_frames(getattr(fresh, side).address, [b"GET / HTTP/1.1\r\n\r\n"])
    after = fresh.transfer()
    print(f"{side}: a room took {normal:.3f} s before the frame, {after:.3f} s after it")
    assert after < normal + 1


def test_a_room_in_flight_outlives_a_flood(pair: Pair):
    room = pair.room()
    pages = list(range(8))
    pair.prefill.call("fill", pages, 0, room)
    pair.open(room)
    for role in (pair.prefill, pair.decode):
        send_frames(role.address, *[[b"noise", bytes([i % 256])] for i in range(1000)])
    pair.prefill.call("send", room, pages, 0)
    assert pair.decode.call("wait", room, [SUCCESS, FAILED], 5.0)[0] == SUCCESS


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_control_thread_that_dies_is_started_again(fresh: Pair, side: str):
    role = getattr(fresh, side)
    role.call("break_control")
    send_frames(role.address, [b"whatever"])
    deadline = time.monotonic() + 5
    while (True, 1) not in (states := set(role.call("control").values())):
        assert time.monotonic() < deadline, states
        time.sleep(0.005)
    assert fresh.transfer() < 1


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_process_leaves_when_its_main_thread_does(fresh: Pair, side: str):
    role = getattr(fresh, side)
    fresh.transfer()
    role.leave()
    start = time.monotonic()
    while os.path.exists(f"/proc/{role.pid}"):
        assert time.monotonic() < start + 60, role.info["immortal"]
        time.sleep(0.01)
    print(f"{side}: gone after {time.monotonic() - start:.2f} s")
