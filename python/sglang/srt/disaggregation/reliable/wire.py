"""Control messages between prefill and decode, as upstream 0.5.23 sends them over ZMQ: frames in, typed messages out.

The layout is that of ``disaggregation/nixl/conn.py`` and ``disaggregation/common/conn.py``. Frames after the ones named
here are allowed, so that a later version may add some. What is valid here may be handed to upstream's own parsers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

GUARD = b"NixlMsgGuard"
ABORT = b"ABORT"
# Frames of upstream's abort that asks for an acknowledgement; a reason of ours may follow those, and only those.
ABORT_WITH_GENERATION = 5
UNKNOWN = "unknown"
# What a peer that runs these classes adds to upstream's registration: the version of the messages that upstream lacks.
PROTOCOL = b"sglang-pd/"
PROTOCOL_VERSION = 1
DELIVERED = b"PD_DELIVERED"
UNREGISTERED = b"PD_UNREGISTERED"
Problem = Literal["foreign", "truncated", "malformed"]

_LARGEST_ROOM = 2**64 - 1
_LARGEST_INT = 2**63 - 1


class ParseError(ValueError):
    """A message that is none: ``kind`` is what it claims to be (:data:`UNKNOWN` if nothing), ``problem`` what is wrong.

    "foreign": no tag of ours; "truncated": frames are missing; "malformed": a frame holds what it cannot.
    """

    def __init__(self, kind: str, problem: Problem, detail: str):
        super().__init__(f"{problem} {kind} message: {detail}")
        self.kind = kind
        self.problem: Problem = problem


@dataclass(frozen=True)
class Address:
    """Where a process listens for control messages."""

    ip: str
    port: int


@dataclass(frozen=True)
class Registration:
    """Decode tells prefill, once, its buffers and its NIXL agent. ``protocol``: the version of our own messages that it
    understands, 0 for a stock upstream."""

    kind = "registration"
    sender: Address
    agent: str
    buffers: int
    protocol: int


@dataclass(frozen=True)
class Metadata:
    """Decode tells prefill where the pages of a room go; ``pages`` counts them, ``needed`` the messages per room.
    ``protocol``: as with :class:`Registration`."""

    kind = "metadata"
    room: int
    sender: Address
    agent: str
    pages: int
    needed: int
    dummy: bool
    protocol: int


@dataclass(frozen=True)
class Abort:
    """Decode gives a room up; with ``sender`` and ``generation`` it wants to hear when nothing is written any more.

    ``reason``: a frame of ours after upstream's, there only with a generation; None where there is none.
    """

    kind = "abort"
    room: int
    sender: Address | None
    generation: int | None
    reason: Reason | None


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
class Unregistered:
    """Prefill rank ``rank`` got a room's metadata from a decode that it does not know: it was restarted, or the
    registration was lost. Decode is to register, and to send the metadata again."""

    kind = "unregistered"
    room: int
    rank: int

    def frames(self) -> list[bytes]:
        return [UNREGISTERED, str(self.room).encode("ascii"), str(self.rank).encode("ascii")]


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
ToPrefill = Registration | Metadata | Abort | Watermark | StagingResponse
ToDecode = Status | Delivered | Unregistered | ChunkReady | StagingRequest | AbortAck


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


class _Reader:
    """The frames of one message; each method raises :class:`ParseError` that names the frame."""

    def __init__(self, kind: str, frames: Sequence[bytes], least: int):
        if len(frames) < least:
            raise ParseError(kind, "truncated", f"{len(frames)} frames, at least {least} expected")
        self._kind = kind
        self._frames = frames

    def has(self, index: int) -> bool:
        return len(self._frames) > index and self._frames[index] != b""

    def number(self, index: int, high: int = _LARGEST_INT) -> int:
        raw = self._frames[index]
        if not raw.isdigit() or len(raw) > 20 or int(raw) > high:
            raise self.wrong(index, f"{raw[:24]!r} is no number from 0 to {high}")
        return int(raw)

    def optional_number(self, index: int, high: int = _LARGEST_INT) -> int | None:
        return self.number(index, high) if self.has(index) else None

    def text(self, index: int) -> str:
        raw = self._frames[index]
        if not raw or not raw.isascii():
            raise self.wrong(index, f"{raw[:24]!r} is no ASCII text")
        return raw.decode("ascii")

    def optional_reason(self, index: int) -> Reason | None:
        """A failure's label. A newer peer may know reasons that we do not, which is no fault of the message."""
        if not self.has(index):
            return None
        try:
            reason = Reason(self._frames[index].decode("ascii", errors="replace"))
        except ValueError:
            return Reason.PEER_FAILED
        return Reason.PEER_FAILED if reason.outcome is Outcome.SUCCESS else reason

    def address(self, ip: int, port: int) -> Address:
        found = Address(self.text(ip), self.number(port, 65535))
        if found.port == 0:
            raise self.wrong(port, "port 0")
        return found

    def count(self, index: int, width: int) -> int:
        """How many numbers of ``width`` bytes the frame holds."""
        if len(self._frames[index]) % width:
            raise self.wrong(index, f"{len(self._frames[index])} bytes are no multiple of {width}")
        return len(self._frames[index]) // width

    def optional_lists(self, index: int, width: int) -> None:
        """Check a frame of upstream's ``pack_int_lists``: a count, the lengths in bytes, the lists."""
        if not self.has(index):
            return
        raw = self._frames[index]
        count = struct.unpack_from("<I", raw)[0] if len(raw) >= 4 else -1
        header = 4 + 4 * count
        if count < 0 or len(raw) < header:
            raise self.wrong(index, "its header is cut off")
        lengths = struct.unpack_from(f"<{count}I", raw, 4)
        if header + sum(lengths) != len(raw) or any(length % width for length in lengths):
            raise self.wrong(index, "its lists do not add up")

    def wrong(self, index: int, detail: str) -> ParseError:
        return ParseError(self._kind, "malformed", f"frame {index}: {detail}")


def _registration(frames: Sequence[bytes]) -> Registration:
    read = _Reader(Registration.kind, frames, least=12)
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
    return Registration(read.address(1, 2), read.text(3), buffers, _protocol(frames[24:]))


def _protocol(frames: Sequence[bytes]) -> int:
    """The version that a peer of ours names after upstream's frames; 0 where there is none."""
    number = frames[0].removeprefix(PROTOCOL) if frames and frames[0].startswith(PROTOCOL) else b""
    return int(number) if number.isdigit() and len(number) < 4 else 0


def _metadata(frames: Sequence[bytes]) -> Metadata:
    read = _Reader(Metadata.kind, frames, least=7)
    pages = read.count(4, width=4)
    if any(page < 0 for page in struct.unpack(f"<{pages}i", frames[4])):
        raise read.wrong(4, "a negative page")
    read.number(5)
    needed = read.number(6)
    if needed == 0:
        raise read.wrong(6, "no message is needed")
    read.optional_lists(7, width=4)
    read.optional_number(8)
    dummy = read.optional_number(9, high=1)
    return Metadata(
        read.number(0, _LARGEST_ROOM),
        read.address(1, 2),
        read.text(3),
        pages,
        needed,
        bool(dummy),
        _protocol(frames[10:]),
    )


def _abort(frames: Sequence[bytes]) -> Abort:
    read = _Reader(Abort.kind, frames, least=1)
    sender = read.address(1, 2) if len(frames) >= 3 else None
    return Abort(read.number(0, _LARGEST_ROOM), sender, read.optional_number(3), read.optional_reason(4))


def _watermark(frames: Sequence[bytes]) -> Watermark:
    read = _Reader(Watermark.kind, frames, least=2)
    read.number(0)
    read.number(1)
    if read.has(2):
        read.text(2)
    return Watermark()


def _staging_response(frames: Sequence[bytes]) -> StagingResponse:
    read = _Reader(StagingResponse.kind, frames, least=6)
    read.number(1)
    for index in (2, 3, 4):
        _signed(read, frames, index)
    read.text(5)
    return StagingResponse(read.number(0, _LARGEST_ROOM))


def _status(frames: Sequence[bytes]) -> Status:
    read = _Reader(Status.kind, frames, least=3)
    text = frames[3].decode("utf-8", errors="replace") if read.has(3) else None
    reason = read.optional_reason(4)
    return Status(read.number(0, _LARGEST_ROOM), read.number(1, high=4), read.number(2), text, reason)


def _delivered(frames: Sequence[bytes]) -> Delivered:
    read = _Reader(Delivered.kind, frames, least=2)
    return Delivered(read.number(0), struct.unpack(f"<{read.count(1, width=8)}Q", frames[1]))


def _unregistered(frames: Sequence[bytes]) -> Unregistered:
    read = _Reader(Unregistered.kind, frames, least=2)
    return Unregistered(read.number(0, _LARGEST_ROOM), read.number(1))


def _chunk_ready(frames: Sequence[bytes]) -> ChunkReady:
    read = _Reader(ChunkReady.kind, frames, least=5)
    for index in (1, 2, 3):
        read.number(index)
    read.text(4)
    return ChunkReady(read.number(0, _LARGEST_ROOM))


def _staging_request(frames: Sequence[bytes]) -> StagingRequest:
    read = _Reader(StagingRequest.kind, frames, least=4)
    for index in (1, 2):
        read.number(index)
    read.text(3)
    read.optional_number(4)
    return StagingRequest(read.number(0, _LARGEST_ROOM))


def _abort_ack(frames: Sequence[bytes]) -> AbortAck:
    read = _Reader(AbortAck.kind, frames, least=2)
    return AbortAck(read.number(0, _LARGEST_ROOM), read.number(1), read.optional_number(2))


def _signed(read: _Reader, frames: Sequence[bytes], index: int) -> None:
    if not frames[index].removeprefix(b"-").isdigit():
        raise read.wrong(index, f"{frames[index][:24]!r} is no number")


_TO_PREFILL: dict[bytes, Callable[[Sequence[bytes]], ToPrefill]] = {
    ABORT: _abort,
    b"WATERMARK": _watermark,
    b"STAGING_RSP": _staging_response,
}
_TO_DECODE: dict[bytes, Callable[[Sequence[bytes]], ToDecode]] = {
    b"KV_STATUS": _status,
    DELIVERED: _delivered,
    UNREGISTERED: _unregistered,
    b"CHUNK_READY": _chunk_ready,
    b"STAGING_REQ": _staging_request,
    b"ABORT_ACK": _abort_ack,
}
