"""Decode's end of a room."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.nixl.conn import NixlKVReceiver

from sglang.srt.disaggregation.reliable.phases import DecodePhase
from sglang.srt.disaggregation.reliable.reasons import Reason


class ReliableKVReceiver(NixlKVReceiver):
    """Keeps the manager's accounts of its room: when metadata went out, and how the scheduler closed it."""

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int | None = None) -> None:
        super().__init__(mgr, bootstrap_addr, bootstrap_room)
        if bootstrap_room is not None:
            mgr.watch.ends[bootstrap_room] = self
            mgr.accounts.ledger.identify(bootstrap_room, peer=bootstrap_addr)

    # Set by :func:`~.naming.name_decode_room` right after the scheduler made the receiver.
    req: Any = None

    def init(self, prefill_dp_rank: int) -> None:
        self.kv_mgr.accounts.ledger.enter(self.bootstrap_room, DecodePhase.BOOTSTRAPPING)
        super().init(prefill_dp_rank)

    def send_metadata(self, kv_indices: Any, *args: Any, **kwargs: Any) -> None:
        super().send_metadata(kv_indices, *args, **kwargs)
        ledger = self.kv_mgr.accounts.ledger
        if ledger.enter(self.bootstrap_room, DecodePhase.WAITING):
            self.kv_mgr.accounts.sized(self.bootstrap_room, len(kv_indices), self.kv_mgr.page_bytes)

    def _clear(self) -> None:
        """The scheduler is done with the room, whatever came of it."""
        accounts, room = self.kv_mgr.accounts, self.bootstrap_room
        if self.kv_mgr.request_status.get(room) == KVPoll.Success:
            # A refused hand-over (its auxiliary data is another room's, or missing) has aborted the request by now.
            refused = self.req is not None and self.req.finished_reason is not None
            accounts.refused(room, Reason.AUX_MISMATCH) if refused else accounts.accepted(room)
        else:
            accounts.failed(room, self.kv_mgr.failure_records.get(room))
        super()._clear()
