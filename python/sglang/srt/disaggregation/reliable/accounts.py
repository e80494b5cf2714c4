"""Keeps the ledger of a KV manager: what upstream's status changes mean, and the line for each room that failed."""

from __future__ import annotations

import logging
import threading
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_parallel

from sglang.srt.disaggregation.reliable import told
from sglang.srt.disaggregation.reliable.classify import classify
from sglang.srt.disaggregation.reliable.failure import Failure
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, Phase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.report import MARK, deserves_warning, warning_line
from sglang.srt.disaggregation.reliable.room import EndedRoom

logger = logging.getLogger(__name__)

# Success is not the end on decode: the auxiliary write has to land, and the scheduler to accept it.
_REACHED: dict[Role, dict[int, Phase]] = {
    Role.PREFILL: {KVPoll.WaitingForInput: PrefillPhase.WAITING, KVPoll.Transferring: PrefillPhase.TRANSFERRING},
    Role.DECODE: {
        KVPoll.WaitingForInput: DecodePhase.ALLOCATING,
        KVPoll.Transferring: DecodePhase.TRANSFERRING,
        KVPoll.Success: DecodePhase.FINISHING,
    },
}


class Accounts:
    """Turns what happens to a room into events of its ledger. Any thread may call.

    ``speaks``: whether this rank logs for all tensor-parallel ranks of its server, so that a room is told once.
    """

    def __init__(self, role: Role, speaks: bool = True):
        self.ledger = Ledger(role)
        self.speaks = speaks
        self.ledger.on_end.add(_warn if speaks else _mention)

    def opened(self, room: int, peer: str | None = None) -> None:
        self.ledger.start(room, peer=peer)

    def status(self, room: int, status: int, text: str | None = None) -> None:
        """The room's status was set to ``status`` (upstream's ``KVPoll``); ``text`` is its recorded failure, if any."""
        if status == KVPoll.Bootstrapping:
            return
        if status == KVPoll.Failed:
            self.failed(room, text)
        elif status == KVPoll.Success and self.ledger.role is Role.PREFILL:
            self.ledger.end(room, Outcome.SUCCESS)
        else:
            self.ledger.enter(room, _REACHED[self.ledger.role][status])

    def sized(self, room: int, pages: int, page_bytes: int) -> None:
        """``pages`` pages of ``page_bytes`` bytes each, all layers together, belong to the transfer."""
        self.ledger.progress(room, pages=pages, bytes=pages * page_bytes)

    def failed(self, room: int, text: str | None) -> None:
        """The room failed; nothing happens where it has ended. ``text``: a :class:`Failure`, or one of upstream's."""
        if self.ledger.phase(room) is not None:
            reason = self.reason(room, text)
            self.ledger.end(room, reason.outcome, reason)

    def reason(self, room: int, text: str | None) -> Reason:
        """Why the room failed: what it ended with, else what ``text`` stands for."""
        ended = self.ledger.end_reason(room)
        if ended is not None and ended.outcome is not Outcome.SUCCESS:
            return ended
        if isinstance(text, Failure):
            return text.reason
        return classify(self.ledger.role, self.ledger.phase(room) or PHASES[self.ledger.role][0], text)

    def aborted_by_decode(self, room: int, reason: Reason | None) -> None:
        """Decode gave the room up, for ``reason`` if it said so; nothing happens where the room has ended."""
        if self.ledger.phase(room) is not None:
            mine = told.abort_of_decode(reason)
            self.ledger.end(room, mine.outcome, mine)

    def accepted(self, room: int) -> None:
        """Decode's scheduler took over what was transferred."""
        self.ledger.end(room, Outcome.SUCCESS)

    def refused(self, room: int, reason: Reason) -> None:
        """Decode's scheduler refused what was transferred."""
        self.ledger.end(room, reason.outcome, reason)


def _warn(record: EndedRoom) -> None:
    if deserves_warning(record):
        logger.warning("%s", warning_line(record))


def _mention(record: EndedRoom) -> None:
    """A rank that does not speak for its server may be the only one to know why: the others end the room as another
    rank's failure. Not a warning, since the room has its line there, and in other words than that one."""
    if deserves_warning(record) and record.reason is not Reason.OTHER_RANK_FAILED:
        line = warning_line(record).removeprefix(MARK)
        logger.info("this rank failed a room, which the first rank counts: %s", line)


class Accounted:
    """The part of a KV manager that keeps :class:`Accounts`; to stand before upstream's manager among the bases."""

    request_status: dict[int, int]
    failure_records: dict[int, str]
    failure_lock: threading.Lock

    def __init__(self, args: Any, disaggregation_mode: DisaggregationMode, *rest: Any, **kwargs: Any) -> None:
        ranks = get_parallel()
        speaks = ranks.attn_tp_rank == 0 and ranks.attn_cp_rank == 0 and ranks.pp_rank == 0
        self.accounts = Accounts(Role(disaggregation_mode.value), speaks)
        self.page_bytes = sum(args.kv_item_lens)
        super().__init__(args, disaggregation_mode, *rest, **kwargs)  # type: ignore[call-arg]

    def update_status(self, bootstrap_room: int, status: int) -> None:
        """Accounts come first: whoever sees the status may be done with the room at once, and use its number again."""
        current = self.request_status.get(bootstrap_room)
        begins = current is None and status in (KVPoll.Bootstrapping, KVPoll.WaitingForInput)
        if begins:
            self.accounts.opened(bootstrap_room)
        if begins or current not in (None, KVPoll.Failed):
            self.accounts.status(bootstrap_room, status, self.failure_records.get(bootstrap_room))
        super().update_status(bootstrap_room, status)  # type: ignore[misc]

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None:
        """Upstream keeps the text of a room that is gone as well: for ever, or for the next room of that number."""
        with self.failure_lock:
            if bootstrap_room in self.request_status:
                self.failure_records[bootstrap_room] = failure_reason

    def forget_failure(self, bootstrap_room: int) -> None:
        """The room is gone, and nobody asked why it failed."""
        with self.failure_lock:
            self.failure_records.pop(bootstrap_room, None)

    def _encode_kv_status_message(self, *, bootstrap_room: int, status: int, failure_reason: str | None) -> list[bytes]:
        """Upstream's message to decode. A failure gets one frame more, the label of its reason: a decode of upstream's
        does not look at it."""
        frames = super()._encode_kv_status_message(  # type: ignore[misc]
            bootstrap_room=bootstrap_room, status=status, failure_reason=failure_reason
        )
        if status == KVPoll.Failed:
            frames.append(self.accounts.reason(bootstrap_room, failure_reason).encode("ascii"))
        return frames
