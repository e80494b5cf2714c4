"""Keeps the ledger of a KV manager: what upstream's status changes mean, and the line for each room that failed."""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_parallel

from sglang.srt.disaggregation.reliable.classify import classify
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Phase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.report import deserves_warning, warning_line
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
        if speaks:
            self.ledger.on_end.add(_warn)

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
        """The room failed; nothing happens where it has ended."""
        phase = self.ledger.phase(room)
        if phase is not None:
            reason = classify(self.ledger.role, phase, text)
            self.ledger.end(room, reason.outcome, reason)

    def accepted(self, room: int) -> None:
        """Decode's scheduler took over what was transferred."""
        self.ledger.end(room, Outcome.SUCCESS)

    def refused(self, room: int, reason: Reason) -> None:
        """Decode's scheduler refused what was transferred."""
        self.ledger.end(room, reason.outcome, reason)


def _warn(record: EndedRoom) -> None:
    if deserves_warning(record):
        logger.warning("%s", warning_line(record))


class Accounted:
    """The part of a KV manager that keeps :class:`Accounts`; to stand before upstream's manager among the bases."""

    request_status: dict[int, int]
    failure_records: dict[int, str]

    def __init__(self, args: Any, disaggregation_mode: DisaggregationMode, *rest: Any, **kwargs: Any) -> None:
        ranks = get_parallel()
        speaks = ranks.attn_tp_rank == 0 and ranks.attn_cp_rank == 0 and ranks.pp_rank == 0
        self.accounts = Accounts(Role(disaggregation_mode.value), speaks)
        self.page_bytes = sum(args.kv_item_lens)
        super().__init__(args, disaggregation_mode, *rest, **kwargs)  # type: ignore[call-arg]

    def update_status(self, bootstrap_room: int, status: int) -> None:
        fresh = bootstrap_room not in self.request_status
        super().update_status(bootstrap_room, status)  # type: ignore[misc]
        if bootstrap_room in self.request_status:
            if fresh:
                self.accounts.opened(bootstrap_room)
            self.accounts.status(bootstrap_room, status, self.failure_records.get(bootstrap_room))
