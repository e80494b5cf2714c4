"""Reading the frames of a control message; pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

UNKNOWN = "unknown"
LARGEST_ROOM = 2**64 - 1
LARGEST_INT = 2**63 - 1
Problem = Literal["foreign", "truncated", "malformed"]


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


class Reader:
    """The frames of one message; each method raises :class:`ParseError` that names the frame."""

    def __init__(self, kind: str, frames: Sequence[bytes], least: int):
        if len(frames) < least:
            raise ParseError(kind, "truncated", f"{len(frames)} frames, at least {least} expected")
        self._kind = kind
        self._frames = frames

    def has(self, index: int) -> bool:
        return len(self._frames) > index and self._frames[index] != b""

    def number(self, index: int, high: int = LARGEST_INT) -> int:
        raw = self._frames[index]
        if not raw.isdigit() or len(raw) > 20 or int(raw) > high:
            raise self.wrong(index, f"{raw[:24]!r} is no number from 0 to {high}")
        return int(raw)

    def optional_number(self, index: int, high: int = LARGEST_INT) -> int | None:
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
