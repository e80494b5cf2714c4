"""What a peer of ours adds to a control message as its last frame: who sends it, whom it is for, which one it is.

``sglang-pd/<version> <sender> <to> <serial> <attempt>``, where ``-`` stands for what is not known. A stock peer does
not look at it, and sends none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang.srt.disaggregation.reliable import incarnation

PREFIX = b"sglang-pd/"
VERSION = 2
_NONE = "-"


@dataclass(frozen=True)
class Stamp:
    """``protocol``: the version of our own messages that the sender understands, 0 for a stock upstream.

    ``sender``, ``to``: incarnations, None where not known. ``serial``: the number of a room's receiver within its
    process, so that a room is told from another of its number. ``attempt``: how often the message was sent before.
    """

    protocol: int = 0
    sender: str | None = None
    to: str | None = None
    serial: int | None = None
    attempt: int = 0

    @property
    def is_for_another(self) -> bool:
        """Whether the message is for a process that was here before this one."""
        return self.to is not None and self.to != incarnation.mine()

    def frame(self) -> bytes:
        fields = (self.protocol, self.sender, self.to, self.serial, self.attempt)
        return PREFIX + " ".join(_NONE if field is None else str(field) for field in fields).encode("ascii")


STOCK = Stamp()


def stamp(to: str | None, serial: int | None = None, attempt: int = 0) -> bytes:
    """The frame of a message from this process."""
    return Stamp(VERSION, incarnation.mine(), to, serial, attempt).frame()


def take(frames: Sequence[bytes]) -> tuple[Stamp, Sequence[bytes]]:
    """The stamp of a message, :data:`STOCK` where it has none, and its other frames."""
    if len(frames) < 2 or not frames[-1].startswith(PREFIX):
        return STOCK, frames
    words = frames[-1][len(PREFIX) :].decode("ascii", errors="replace").split(" ")
    version, sender, to, serial, attempt = (words + [_NONE] * 4)[:5]
    if not _is_number(version):
        return STOCK, frames[:-1]
    read = Stamp(
        int(version),
        sender if incarnation.is_one(sender) else None,
        to if incarnation.is_one(to) else None,
        int(serial) if _is_number(serial) else None,
        int(attempt) if _is_number(attempt) else 0,
    )
    return read, frames[:-1]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20
