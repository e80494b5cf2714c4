"""Control messages between prefill and decode, as upstream 0.5.23 sends them over ZMQ: frames in, typed messages out.

The layout is that of ``disaggregation/nixl/conn.py`` and ``disaggregation/common/conn.py``. Frames after the ones named
here are allowed, so that a later version may add some. What is valid here may be handed to upstream's own parsers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sglang.srt.disaggregation.reliable.frames import LARGEST_ROOM, UNKNOWN, Address, ParseError, Reader
from sglang.srt.disaggregation.reliable.reasons import Reason

GUARD = b"NixlMsgGuard"
ABORT = b"ABORT"
# Frames of upstream's abort that asks for an acknowledgement; a reason of ours may follow those. Where it asks for
# none, the last of them is empty or missing.
ABORT_WITH_GENERATION = 5
DELIVERED = b"PD_DELIVERED"
PING = b"PD_PING"
PONG = b"PD_PONG"
RECEIVED = b"PD_RECEIVED"
UNREGISTERED = b"PD_UNREGISTERED"


@dataclass(frozen=True)
class Registration:
    """Decode tells prefill, once, its buffers and its NIXL agent."""

    kind = "registration"
    sender: Address
    agent: str
    buffers: int


@dataclass(frozen=True)
class Metadata:
    """Decode tells prefill where the pages of a room go; ``pages`` counts them, ``needed`` the messages per room."""

    kind = "metadata"
    room: int
    sender: Address
    agent: str
    pages: int
    needed: int
    dummy: bool


@dataclass(frozen=True)
class Abort:
    """Decode gives a room up; with ``sender`` and ``generation`` it wants to hear when nothing is written any more.

    ``reason``: a frame of ours after upstream's; None where there is none.
    """

    kind = "abort"
    room: int
    sender: Address | None
    generation: int | None
    reason: Reason | None

    def frames(self) -> list[bytes]:
        """Raises ``ValueError`` unless all of it is known: upstream's layout puts the reason after the others."""
        if self.sender is None or self.generation is None or self.reason is None:
            raise ValueError(f"not to be sent: {self}")
        numbers = (self.room, self.sender.ip, self.sender.port, self.generation, self.reason)
        return [ABORT, *(str(number).encode("ascii") for number in numbers)]


@dataclass(frozen=True)
class Watermark:
    """Decode has consumed its staging buffer up to here."""

    kind = "watermark"


@dataclass(frozen=True)
class StagingResponse:
    """Decode has reserved part of its staging buffer for a chunk."""

    kind = "staging_response"
    room: int


@dataclass(frozen=True)
class Status:
    """Prefill rank ``rank`` tells decode how a room ended: ``status`` is upstream's ``KVPoll``, ``text`` its failure.

    ``reason``: a frame of ours after upstream's; None where there is none.
    """

    kind = "status"
    room: int
    status: int
    rank: int
    text: str | None
    reason: Reason | None


@dataclass(frozen=True)
class Delivered:
    """Prefill rank ``rank`` has written everything of these rooms: the successes of many statuses in one message."""

    kind = "delivered"
    rank: int
    rooms: tuple[int, ...]

    def frames(self) -> list[bytes]:
        return [DELIVERED, str(self.rank).encode("ascii"), struct.pack(f"<{len(self.rooms)}Q", *self.rooms)]


@dataclass(frozen=True)
class Received:
    """Prefill rank ``rank`` has a room's metadata; the answer where decode sent it again."""

    kind = "received"
    room: int
    rank: int

    def frames(self) -> list[bytes]:
        return [RECEIVED, str(self.room).encode("ascii"), str(self.rank).encode("ascii")]


@dataclass(frozen=True)
class Unregistered:
    """Prefill rank ``rank`` got a room's metadata from a decode that it does not know, or that took it for a process
    before it: it was restarted, or the registration was lost. Decode is to register, and to send the metadata again."""

    kind = "unregistered"
    room: int
    rank: int

    def frames(self) -> list[bytes]:
        return [UNREGISTERED, str(self.room).encode("ascii"), str(self.rank).encode("ascii")]


@dataclass(frozen=True)
class Ping:
    """``sender`` wants to hear that the process at ``address``, where it sent this, answers. Goes either way."""

    kind = "ping"
    sender: Address
    address: str

    def frames(self) -> list[bytes]:
        return [PING, self.sender.ip.encode("ascii"), b"%d" % self.sender.port, self.address.encode("ascii")]


@dataclass(frozen=True)
class Pong:
    """The answer; ``address`` is where the question was sent."""

    kind = "pong"
    address: str

    def frames(self) -> list[bytes]:
        return [PONG, self.address.encode("ascii")]


@dataclass(frozen=True)
class ChunkReady:
    """Prefill has written a chunk to the staging buffer."""

    kind = "chunk_ready"
    room: int


@dataclass(frozen=True)
class StagingRequest:
    """Prefill asks for part of the staging buffer."""

    kind = "staging_request"
    room: int


@dataclass(frozen=True)
class AbortAck:
    """Prefill rank ``rank`` writes nothing more for an aborted room."""

    kind = "abort_ack"
    room: int
    rank: int
    generation: int | None


T = TypeVar("T")
ToPrefill = Registration | Metadata | Abort | Watermark | StagingResponse | Ping | Pong
ToDecode = Status | Delivered | Received | Unregistered | ChunkReady | StagingRequest | AbortAck | Ping | Pong


def parse_to_prefill(frames: Sequence[bytes]) -> ToPrefill:
    """A message to a prefill rank; raises :class:`ParseError`."""
    if frames[0] == GUARD:
        if len(frames) < 2:
            raise ParseError(UNKNOWN, "truncated", "nothing follows the guard")
        return _registration(frames[1:]) if frames[1] == b"None" else _metadata(frames[1:])
    return _tagged(frames, _TO_PREFILL)


def parse_to_decode(frames: Sequence[bytes]) -> ToDecode:
    """A message to a decode rank; raises :class:`ParseError`."""
    return _tagged(frames, _TO_DECODE)


def _tagged(frames: Sequence[bytes], parsers: dict[bytes, Callable[[Sequence[bytes]], T]]) -> T:
    parser = parsers.get(frames[0])
    if parser is None:
        raise ParseError(UNKNOWN, "foreign", f"it starts with {frames[0][:20]!r}")
    return parser(frames[1:])


def _registration(frames: Sequence[bytes]) -> Registration:
    read = Reader(Registration.kind, frames, least=12)
    if not frames[4]:
        raise read.wrong(4, "no agent metadata")
    buffers = read.count(5, width=8)
    read.count(6, width=8)
    for index in range(8, 12):
        read.number(index)
    for index, width in ((7, 8), (12, 4), (13, 4), (19, 4), (23, 8)):
        read.optional_lists(index, width)
    if read.has(14) and len(frames[14]) != 8:
        raise read.wrong(14, "no pointer of 8 bytes")
    for index in (15, 16, 21, 22):
        read.optional_number(index)
    if read.has(17) and not (set(kinds := read.text(17).split(",")) <= {"VRAM", "DRAM"} and len(kinds) == buffers):
        raise read.wrong(17, f"no {buffers} kinds of memory")
    if read.has(18) and read.count(18, width=8) != buffers:
        raise read.wrong(18, f"no {buffers} lengths")
    if read.has(20):
        read.count(20, width=4)
    return Registration(read.address(1, 2), read.text(3), buffers)


def _metadata(frames: Sequence[bytes]) -> Metadata:
    read = Reader(Metadata.kind, frames, least=7)
    pages = read.count(4, width=4)
    if pages and min(struct.unpack(f"<{pages}i", frames[4])) < 0:
        raise read.wrong(4, "a negative page")
    read.number(5)
    needed = read.number(6)
    if needed == 0:
        raise read.wrong(6, "no message is needed")
    read.optional_lists(7, width=4)
    read.optional_number(8)
    dummy = read.optional_number(9, high=1)
    return Metadata(
        read.number(0, LARGEST_ROOM),
        read.address(1, 2),
        read.text(3),
        pages,
        needed,
        bool(dummy),
    )


def _abort(frames: Sequence[bytes]) -> Abort:
    read = Reader(Abort.kind, frames, least=1)
    sender = read.address(1, 2) if len(frames) >= 3 else None
    return Abort(read.number(0, LARGEST_ROOM), sender, read.optional_number(3), read.optional_reason(4))


def _watermark(frames: Sequence[bytes]) -> Watermark:
    read = Reader(Watermark.kind, frames, least=2)
    read.number(0)
    read.number(1)
    if read.has(2):
        read.text(2)
    return Watermark()


def _staging_response(frames: Sequence[bytes]) -> StagingResponse:
    read = Reader(StagingResponse.kind, frames, least=6)
    read.number(1)
    for index in (2, 3, 4):
        _signed(read, frames, index)
    read.text(5)
    return StagingResponse(read.number(0, LARGEST_ROOM))


def _status(frames: Sequence[bytes]) -> Status:
    read = Reader(Status.kind, frames, least=3)
    text = frames[3].decode("utf-8", errors="replace") if read.has(3) else None
    reason = read.optional_reason(4)
    return Status(read.number(0, LARGEST_ROOM), read.number(1, high=4), read.number(2), text, reason)


def _delivered(frames: Sequence[bytes]) -> Delivered:
    read = Reader(Delivered.kind, frames, least=2)
    return Delivered(read.number(0), struct.unpack(f"<{read.count(1, width=8)}Q", frames[1]))


def _received(frames: Sequence[bytes]) -> Received:
    read = Reader(Received.kind, frames, least=2)
    return Received(read.number(0, LARGEST_ROOM), read.number(1))


def _unregistered(frames: Sequence[bytes]) -> Unregistered:
    read = Reader(Unregistered.kind, frames, least=2)
    return Unregistered(read.number(0, LARGEST_ROOM), read.number(1))


def _chunk_ready(frames: Sequence[bytes]) -> ChunkReady:
    read = Reader(ChunkReady.kind, frames, least=5)
    for index in (1, 2, 3):
        read.number(index)
    read.text(4)
    return ChunkReady(read.number(0, LARGEST_ROOM))


def _staging_request(frames: Sequence[bytes]) -> StagingRequest:
    read = Reader(StagingRequest.kind, frames, least=4)
    for index in (1, 2):
        read.number(index)
    read.text(3)
    read.optional_number(4)
    return StagingRequest(read.number(0, LARGEST_ROOM))


def _abort_ack(frames: Sequence[bytes]) -> AbortAck:
    read = Reader(AbortAck.kind, frames, least=2)
    return AbortAck(read.number(0, LARGEST_ROOM), read.number(1), read.optional_number(2))


def _ping(frames: Sequence[bytes]) -> Ping:
    read = Reader(Ping.kind, frames, least=3)
    return Ping(read.address(0, 1), read.text(2))


def _pong(frames: Sequence[bytes]) -> Pong:
    return Pong(Reader(Pong.kind, frames, least=1).text(0))


def _signed(read: Reader, frames: Sequence[bytes], index: int) -> None:
    if not frames[index].removeprefix(b"-").isdigit():
        raise read.wrong(index, f"{frames[index][:24]!r} is no number")


_TO_PREFILL: dict[bytes, Callable[[Sequence[bytes]], ToPrefill]] = {
    ABORT: _abort,
    b"WATERMARK": _watermark,
    b"STAGING_RSP": _staging_response,
    PING: _ping,
    PONG: _pong,
}
_TO_DECODE: dict[bytes, Callable[[Sequence[bytes]], ToDecode]] = {
    b"KV_STATUS": _status,
    DELIVERED: _delivered,
    RECEIVED: _received,
    UNREGISTERED: _unregistered,
    b"CHUNK_READY": _chunk_ready,
    b"STAGING_REQ": _staging_request,
    b"ABORT_ACK": _abort_ack,
    PING: _ping,
    PONG: _pong,
}
