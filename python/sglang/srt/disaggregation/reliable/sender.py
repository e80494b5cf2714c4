"""Prefill's end of a room."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.nixl.conn import NixlKVSender

from sglang.srt.disaggregation.reliable.answers import wanted_end
from sglang.srt.disaggregation.reliable.failure import failure
from sglang.srt.disaggregation.reliable.reasons import Reason


class ReliableKVSender(NixlKVSender):
    """Tells decode whenever prefill gives the room up, in whatever phase."""

    # Set by :mod:`~.naming` right after the scheduler made the sender.
    req: Any = None

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *args: Any, **kwargs: Any) -> None:
        self._gave_up = self._cleared = self._reporting = False
        doomed = mgr.prefill.opened(bootstrap_room)
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)
        if doomed is not None:
            mgr.record_failure(bootstrap_room, doomed)
            mgr.update_status(bootstrap_room, KVPoll.Failed)

    def send(self, kv_indices: Any, *args: Any, **kwargs: Any) -> None:
        self.kv_mgr.accounts.sized(self.bootstrap_room, len(kv_indices), self.kv_mgr.page_bytes)
        super().send(kv_indices, *args, **kwargs)

    def abort(self) -> None:
        """Upstream's scheduler calls this for whatever ends a request early, not only for a client's wish."""
        reason = failure(wanted_end(self.req), "prefill aborted the request")
        if not self._cleared:
            self.kv_mgr.accounts.failed(self.bootstrap_room, reason)
        super().abort()
        if not self._cleared:
            self.kv_mgr.record_failure(self.bootstrap_room, reason)
        self._give_up(reason)

    def _check_bootstrap_timeout(self) -> Any:
        status = super()._check_bootstrap_timeout()
        if status == KVPoll.Failed:
            self._give_up(failure(Reason.METADATA_TIMEOUT, "prefill waited too long for the metadata of the room"))
        return status

    def clear(self) -> None:
        """The scheduler is done with the room. It may say so twice, and the number may be another room's by then."""
        if self._cleared:
            return
        text = self.kv_mgr.failure_records.get(self.bootstrap_room)
        if KVPoll.Failed in (self.conclude_state, self.kv_mgr.request_status.get(self.bootstrap_room)):
            self._give_up(text or failure(Reason.OTHER_RANK_FAILED))
        self.kv_mgr.accounts.failed(self.bootstrap_room, text)
        super().clear()
        self._cleared = True
        if not self._reporting:
            # Upstream would take it for the failure of the next room of this number.
            self.kv_mgr.forget_failure(self.bootstrap_room)

    def failure_exception(self) -> None:
        self._reporting = True
        super().failure_exception()

    def _give_up(self, reason: str) -> None:
        if not self._gave_up:
            self._gave_up = True
            self.kv_mgr.prefill.ended(self.bootstrap_room, reason)
