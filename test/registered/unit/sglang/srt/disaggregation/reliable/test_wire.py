"""Control messages: what is accepted, and how everything else is refused."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable import wire
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.wire import Address, ParseError, parse_to_decode, parse_to_prefill


def lists(*values: bytes) -> bytes:
    return struct.pack(f"<{len(values) + 1}I", len(values), *map(len, values)) + b"".join(values)


def registration(**changed: bytes) -> list[bytes]:
    frames = {
        "guard": wire.GUARD, "room": b"None", "ip": b"10.0.0.2", "port": b"4711", "agent": b"a-1",
        "metadata": b"\x00\xff",
        "kv": struct.pack("<4Q", 1, 2, 3, 4), "aux": struct.pack("<1Q", 5), "state": lists(struct.pack("<2Q", 6, 7)),
        "gpu": b"0", "tp_size": b"1", "tp_rank": b"0", "item_len": b"4096",
        "state_lens": lists(struct.pack("<2I", 8, 8)),
        "state_dims": lists(b""), "staging": b"", "staging_size": b"", "slots": b"512", "kinds": b"DRAM,DRAM,DRAM,DRAM",
        "item_lens": struct.pack("<4Q", 4096, 4096, 4096, 4096), "state_layers": b"",
        "kv_layers": struct.pack("<4I", 0, 1, 0, 1),
        "dcp_size": b"1", "dcp_rank": b"0", "state_data": b"",
    }  # fmt: skip
    return list({**frames, **changed}.values())


def metadata(**changed: bytes) -> list[bytes]:
    frames = {
        "guard": wire.GUARD, "room": b"12345678901234567890", "ip": b"10.0.0.2", "port": b"4711", "agent": b"a-1",
        "pages": struct.pack("<3i", 7, 8, 9), "aux": b"3", "needed": b"1", "state": b"", "prefix": b"0", "dummy": b"0",
    }  # fmt: skip
    return list({**frames, **changed}.values())


ADDRESS = Address("10.0.0.2", 4711)
ROOM = 12345678901234567890
VALID = [
    (parse_to_prefill, registration(), wire.Registration(ADDRESS, "a-1", 4)),
    (parse_to_prefill, registration()[:13], wire.Registration(ADDRESS, "a-1", 4)),
    (parse_to_prefill, [*registration(), b"later"], wire.Registration(ADDRESS, "a-1", 4)),
    (parse_to_prefill, [*metadata(), b"later"], wire.Metadata(ROOM, ADDRESS, "a-1", 3, 1, False)),
    (parse_to_prefill, metadata(), wire.Metadata(ROOM, ADDRESS, "a-1", 3, 1, False)),
    (parse_to_prefill, metadata(dummy=b"1", pages=b""), wire.Metadata(ROOM, ADDRESS, "a-1", 0, 1, True)),
    (parse_to_prefill, metadata()[:8], wire.Metadata(ROOM, ADDRESS, "a-1", 3, 1, False)),
    (parse_to_prefill, [b"ABORT", b"5"], wire.Abort(5, None, None, None)),
    (parse_to_prefill, [b"ABORT", b"5", b"10.0.0.2", b"4711", b"9"], wire.Abort(5, ADDRESS, 9, None)),
    (
        parse_to_prefill,
        [b"ABORT", b"5", b"10.0.0.2", b"4711", b"9", b"aux_missing"],
        wire.Abort(5, ADDRESS, 9, Reason.AUX_MISSING),
    ),
    (
        parse_to_prefill,
        [b"ABORT", b"5", b"10.0.0.2", b"4711", b"", b"peer_silent"],
        wire.Abort(5, ADDRESS, None, Reason.PEER_SILENT),
    ),
    (parse_to_prefill, [b"WATERMARK", b"1", b"2", b"a-1"], wire.Watermark()),
    (parse_to_prefill, [b"STAGING_RSP", b"5", b"0", b"-1", b"0", b"-1", b"a-1"], wire.StagingResponse(5)),
    (parse_to_decode, [b"KV_STATUS", b"5", b"0", b"2", "größer".encode()], wire.Status(5, 0, 2, "größer", None)),
    (parse_to_decode, wire.Delivered(2, (5, ROOM)).frames(), wire.Delivered(2, (5, ROOM))),
    (parse_to_decode, wire.Received(5, 2).frames(), wire.Received(5, 2)),
    *(
        (parse, message.frames(), message)
        for parse in (parse_to_prefill, parse_to_decode)
        for message in (wire.Ping(ADDRESS, "tcp://10.0.0.3:1"), wire.Pong("tcp://10.0.0.3:1"))
    ),
    (parse_to_decode, wire.Unregistered(5, 2).frames(), wire.Unregistered(5, 2)),
    (parse_to_decode, [b"KV_STATUS", b"5", b"4", b"2"], wire.Status(5, 4, 2, None, None)),
    (
        parse_to_decode,
        [b"KV_STATUS", b"5", b"0", b"2", b"", b"nixl_backend"],
        wire.Status(5, 0, 2, None, Reason.NIXL_BACKEND),
    ),
    (parse_to_decode, [b"CHUNK_READY", b"5", b"0", b"0", b"8", b"a-1", b"0"], wire.ChunkReady(5)),
    (parse_to_decode, [b"STAGING_REQ", b"5", b"0", b"8", b"a-1"], wire.StagingRequest(5)),
    (parse_to_decode, [b"ABORT_ACK", b"5", b"0", b"9"], wire.AbortAck(5, 0, 9)),
]
REFUSED = [
    (parse_to_prefill, [b"hello"], "unknown", "foreign"),
    (parse_to_prefill, [b"KV_STATUS", b"5", b"4", b"2"], "unknown", "foreign"),
    (parse_to_prefill, [wire.GUARD], "unknown", "truncated"),
    (parse_to_prefill, registration()[:12], "registration", "truncated"),
    (parse_to_prefill, registration(port=b"0"), "registration", "malformed"),
    (parse_to_prefill, registration(port=b"65536"), "registration", "malformed"),
    (parse_to_prefill, registration(metadata=b""), "registration", "malformed"),
    (parse_to_prefill, registration(kv=b"1234567"), "registration", "malformed"),
    (parse_to_prefill, registration(kinds=b"DRAM"), "registration", "malformed"),
    (parse_to_prefill, registration(kinds=b"DRAM,DRAM,DRAM,HBM"), "registration", "malformed"),
    (parse_to_prefill, registration(item_lens=struct.pack("<1Q", 1)), "registration", "malformed"),
    (parse_to_prefill, registration(state=lists(b"1234")), "registration", "malformed"),
    (parse_to_prefill, registration(state=lists(b"12345678")[:-1]), "registration", "malformed"),
    (parse_to_prefill, registration(state=b"\xff\xff\xff\xff"), "registration", "malformed"),
    (parse_to_prefill, registration(staging=b"1234"), "registration", "malformed"),
    (parse_to_prefill, registration(tp_rank=b"-1"), "registration", "malformed"),
    (parse_to_prefill, metadata()[:7], "metadata", "truncated"),
    (parse_to_prefill, metadata(room=b"1_000"), "metadata", "malformed"),
    (parse_to_prefill, metadata(room=b" 1"), "metadata", "malformed"),
    (parse_to_prefill, metadata(room=b"9" * 20), "metadata", "malformed"),
    (parse_to_prefill, metadata(room=b"9" * 5000), "metadata", "malformed"),
    (parse_to_prefill, metadata(pages=b"12345"), "metadata", "malformed"),
    (parse_to_prefill, metadata(pages=struct.pack("<2i", 3, -1)), "metadata", "malformed"),
    (parse_to_prefill, metadata(aux=b"None"), "metadata", "malformed"),
    (parse_to_prefill, metadata(needed=b"0"), "metadata", "malformed"),
    (parse_to_prefill, metadata(dummy=b"2"), "metadata", "malformed"),
    (parse_to_prefill, metadata(agent=b""), "metadata", "malformed"),
    (parse_to_prefill, metadata(ip=b"\xff"), "metadata", "malformed"),
    (parse_to_prefill, [b"ABORT"], "abort", "truncated"),
    (parse_to_prefill, [b"ABORT", b"5", b"10.0.0.2", b"port"], "abort", "malformed"),
    (parse_to_decode, [b"KV_STATUS", b"5", b"4"], "status", "truncated"),
    (parse_to_decode, [b"KV_STATUS", b"5", b"5", b"0"], "status", "malformed"),
    (parse_to_decode, [b"ABORT_ACK", b"5", b"x"], "abort_ack", "malformed"),
    (parse_to_decode, [b"PD_PING", b"10.0.0.2", b"0", b"tcp://a:1"], "ping", "malformed"),
    (parse_to_prefill, [b"PD_PONG"], "pong", "truncated"),
]


@pytest.mark.parametrize(("parse", "frames", "message"), VALID)
def test_valid_messages(parse, frames, message):
    assert parse(frames) == message


@pytest.mark.parametrize(("parse", "frames", "kind", "problem"), REFUSED)
def test_refused_messages(parse, frames, kind, problem):
    with pytest.raises(ParseError) as refused:
        parse(frames)
    assert (refused.value.kind, refused.value.problem) == (kind, problem)


@pytest.mark.parametrize("label", [b"reason_of_a_later_version", b"\xff\xfe", b"delivered"])
def test_a_reason_nobody_knows_here_is_a_failure_of_the_peer(label):
    """A success that is none is one too."""
    message = parse_to_decode([b"KV_STATUS", b"5", b"0", b"2", b"why", label])
    assert message == wire.Status(5, 0, 2, "why", Reason.PEER_FAILED)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=26), st.sampled_from([parse_to_prefill, parse_to_decode]))
def test_noise_raises_nothing_but_a_parse_error(frames, parse):
    tags = [
        wire.GUARD,
        b"ABORT",
        b"WATERMARK",
        b"STAGING_RSP",
        b"KV_STATUS",
        b"CHUNK_READY",
        b"STAGING_REQ",
        b"ABORT_ACK",
    ]
    for tag in [frames[0], *tags]:
        try:
            parse([tag, *frames[1:]])
        except ParseError:
            continue


@settings(deadline=None)  # The first example imports upstream.
@given(st.sampled_from(VALID), st.integers(0, 25), st.binary(max_size=12))
def test_what_is_accepted_upstream_can_parse(valid, index, replacement):
    """One frame of a valid message replaced by noise is refused, or fit for upstream's parsers."""
    from sglang.srt.disaggregation.nixl.conn import KVArgsRegisterInfo, TransferInfo

    parse, frames, _ = valid
    frames = [*frames]
    if index < len(frames):
        frames[index] = replacement
    try:
        message = parse(frames)
    except ParseError:
        return
    if isinstance(message, wire.Registration):
        assert KVArgsRegisterInfo.from_zmq(frames[1:]).agent_name == message.agent
    if isinstance(message, wire.Metadata):
        assert len(TransferInfo.from_zmq(frames[1:]).dst_kv_indices) == message.pages
