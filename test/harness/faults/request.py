"""One request between a prefill and a decode, with the test as both schedulers: driven step by step."""

from __future__ import annotations

import re
import time
from enum import IntEnum
from typing import Any

from harness.managers import FAILED, SUCCESS, TRANSFERRING, WAITING, RoleProcess

PAGES = 8
OPEN_S = 5.0


class Upto(IntEnum):
    """How far a request may go."""

    BOOTSTRAPPING = 0
    WAITING = 1
    TRANSFERRING = 2
    END = 3


class Request:
    """Prefill's pages ``source`` go to decode's ``where``, in two chunks. A side that is None has no process any more;
    one in ``still`` is not to be asked.

    ``problems``: what was wrong with it that no ledger can tell.
    """

    def __init__(
        self,
        prefill: RoleProcess,
        decode: RoleProcess,
        room: int,
        source: list[int],
        where: list[int] | None = None,
    ) -> None:
        self.prefill: RoleProcess | None = prefill
        self.decode: RoleProcess | None = decode
        self.room, self.slot = room, room % decode.spec.aux_slots
        self.source = source
        self.where = where or [(room * 17 + 3 * i) % decode.spec.pages for i in range(len(source))]
        self.upto = Upto.BOOTSTRAPPING
        self.still: set[str] = set()
        self.problems: list[str] = []
        self.texts: dict[str, str] = {}
        self.slowest_s: dict[str, float] = {"prefill": 0.0, "decode": 0.0}
        # What allowed decode to give a failed room's pages back, and how long they were held.
        self.released: str | None = None
        self.released_s: float | None = None
        self._done: dict[str, bool] = {"prefill": False, "decode": False}
        self._opened: set[str] = set()
        self.refused: str | None = None
        self._metadata_sent = False
        self._chunks_sent = 0
        self._held_since: float | None = None
        self._content: bytes = b""

    def open(self, *sides: str) -> None:
        """Open the room at both sides, or at those named; raises ``AssertionError`` where decode cannot in time."""
        if not sides or "prefill" in sides:
            assert self.prefill is not None
            self.prefill.call("fill", self.source, self.slot, self.room)
            self._content = self.prefill.call("content", self.source, self.slot)
            self._call("prefill", "open", self.room)
            self._opened.add("prefill")
        if not sides or "decode" in sides:
            deadline = time.monotonic() + OPEN_S
            while not self.try_open_decode():
                assert time.monotonic() < deadline, f"decode cannot open the room: {self.refused or 'no answer'}"
                time.sleep(0.002)

    def try_open_decode(self) -> bool:
        """One round of decode's scheduler, which opens the room once the bootstrap server has answered; returns whether
        it did. ``refused`` is why decode will not work with this prefill."""
        try:
            self._call("decode", "open", self.room)
        except RuntimeError as error:
            if not re.match("NotYetError|RuntimeError: no bootstrap information", str(error)):
                self.refused = str(error)
            return False
        self._opened.add("decode")
        return True

    def opened(self, side: str) -> bool:
        return side in self._opened

    def abort(self, side: str) -> None:
        self._call(side, "abort", self.room)

    def lost(self, side: str) -> None:
        """The side's process is gone, and its part of the request with it: decode's held pages as well."""
        setattr(self, side, None)
        self._done[side] = True
        if side == "decode":
            self._held_since = None

    def done(self, side: str) -> bool:
        return self._done[side]

    @property
    def over(self) -> bool:
        return all(self._done[side] for side in self._opened) and self._held_since is None

    @property
    def held_s(self) -> float | None:
        """How long decode has held the pages of the failed room; None where it does not."""
        return None if self._held_since is None else time.monotonic() - self._held_since

    def step(self) -> None:
        """One round of both schedulers' loops."""
        if self._asks("decode"):
            self._step_decode()
        if self._asks("prefill"):
            self._step_prefill()

    def drive(self, until: Any, timeout_s: float, meanwhile: Any = None) -> bool:
        """Step until ``until()`` or the time is over; returns which."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                return False
            self.step()
            (meanwhile or _pause)()
        return True

    def status(self, side: str) -> int:
        return int(self._call(side, "poll", self.room))

    def _call(self, side: str, method: str, *args: Any) -> Any:
        """A call of the side's scheduler, timed."""
        start = time.monotonic()
        try:
            return self._role(side).call(method, *args)
        finally:
            self.slowest_s[side] = max(self.slowest_s[side], time.monotonic() - start)

    def _asks(self, side: str) -> bool:
        return (
            side in self._opened
            and getattr(self, side) is not None
            and side not in self.still
            and (not self._done[side] or (side == "decode" and self._held_since is not None))
        )

    def _role(self, side: str) -> RoleProcess:
        role = getattr(self, side)
        assert role is not None, f"{side} is gone"
        return role

    def _step_prefill(self) -> None:
        status = self.status("prefill")
        if status == FAILED:
            self._end("prefill", self._call("prefill", "give_up", self.room))
        elif status == SUCCESS:
            self._call("prefill", "clear", self.room)
            self._end("prefill", "success")
        elif status in (WAITING, TRANSFERRING):
            half = len(self.source) // 2
            if self._chunks_sent == 0 and self.upto >= Upto.TRANSFERRING:
                self._call("prefill", "begin", self.room, len(self.source), self.slot)
                self._send(self.source[:half])
            elif self._chunks_sent == 1 and self.upto >= Upto.END:
                self._send(self.source[half:])

    def _send(self, pages: list[int]) -> None:
        self._chunks_sent += 1
        self._call("prefill", "send_chunk", self.room, pages)

    def _step_decode(self) -> None:
        role = self._role("decode")
        if self._held_since is not None:
            self.released = role.call("try_release", self.room)
            if self.released is not None:
                self.released_s = time.monotonic() - self._held_since
                self._held_since = None
            return
        status = self.status("decode")
        if status == FAILED:
            self._end("decode", self._call("decode", "give_up", self.room))
            self._held_since = time.monotonic()
        elif status == SUCCESS:
            if role.call("content", self.where, self.slot) != self._content:
                self.problems.append("decode succeeded with other bytes than prefill's")
            self._call("decode", "clear", self.room)
            self._end("decode", "success")
        elif not self._metadata_sent and status == WAITING and self.upto >= Upto.WAITING:
            self._metadata_sent = True
            self._call("decode", "send_metadata", self.room, self.where, self.slot)

    def _end(self, side: str, text: str) -> None:
        self._done[side] = True
        self.texts[side] = text


def _pause() -> None:
    time.sleep(0.002)
