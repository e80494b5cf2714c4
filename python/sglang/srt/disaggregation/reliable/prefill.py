"""Prefill's side of the control plane, and the sender that tells decode how its room ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, ClassVar

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.staging_handler import handle_staging_rsp, handle_watermark_msg
from sglang.srt.disaggregation.nixl.conn import KVArgsRegisterInfo, NixlKVSender, TransferInfo

from sglang.srt.disaggregation.reliable import wire
from sglang.srt.disaggregation.reliable.control import Result
from sglang.srt.disaggregation.reliable.tombstones import Tombstones

logger = logging.getLogger(__name__)


class PrefillControl:
    """Acts on what decode ranks send to this prefill rank; ``manager`` is its ``ReliableKVManager``.

    A room has ended when its sender gave it up. Decode is told at once where that is known to be safe: its pages count
    as free from then on, so not while a write to them may be in flight.
    """

    thread: ClassVar[str] = "prefill-control"

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        # The control thread installs metadata while the scheduler ends rooms: one lock decides which came first.
        self._lock = threading.RLock()
        self._ended = Tombstones(keep_s=manager.bootstrap_timeout)
        self._doomed = Tombstones(keep_s=manager.bootstrap_timeout)
        self._untold: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        self._rejected: dict[str, str] = {}

    def handle(self, frames: list[bytes]) -> tuple[str, Result]:
        message = wire.parse_to_prefill(frames)
        match message:
            case wire.Registration():
                return message.kind, self._register(message, frames)
            case wire.Metadata():
                return message.kind, self._metadata(message, frames)
            case wire.Abort():
                return message.kind, self._abort(message, frames)
            case wire.Watermark():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                handle_watermark_msg(self._manager._staging_ctx, frames)
            case wire.StagingResponse():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                handle_staging_rsp(frames, self._manager.transfer_infos)
        return message.kind, "handled"

    # Called by the sender, on the scheduler's thread.

    def opened(self, room: int) -> str | None:
        """A sender takes the room; returns why the room cannot succeed any more, None if it can."""
        with self._lock:
            now = time.monotonic()
            self._ended.dig_up(room, now)
            return self._doomed.dig_up(room, now)

    def ended(self, room: int, reason: str) -> None:
        """The room's sender gave it up (its status is Failed): tell decode."""
        manager = self._manager
        with self._lock:
            known = manager.transfer_infos.get(room, {})
            complete = bool(known) and len(known) >= next(iter(known.values())).required_dst_info_num
            targets = manager._room_notify_targets(room)
            if not complete:
                # Decode's half is not here, or not all of it, so the room may be that of any decode; others ignore it.
                targets += [target for target in self._registered() if target not in targets]
            self._ended.bury(room, reason, time.monotonic(), told=known)
            self._untold[room] = (reason, targets)
        self.drained(room)

    def drained(self, room: int) -> None:
        """Tell decode about the room if it has ended and nothing of it is in flight."""
        manager = self._manager
        # A poisoned room never drains; decode holds its pages for a while of its own and must not also wait for us.
        if manager._staging_outstanding.get(room, 0) > 0 and room not in manager._deferred_ack_poisoned_rooms:
            return
        reason, targets = self._untold.pop(room, ("", []))
        self._tell(targets, room, reason)

    # Control messages.

    def _register(self, message: wire.Registration, frames: list[bytes]) -> Result:
        manager = self._manager
        try:
            manager._add_remote_peer(KVArgsRegisterInfo.from_zmq(frames[1:]))
        except Exception as error:
            # NIXL's and upstream's errors have no common base. Whatever it is, it is this peer's alone.
            logger.exception("cannot register decode %s at %s", message.agent, message.sender)
            manager.decode_kv_args_table.pop(message.agent, None)
            self._rejected[message.agent] = f"prefill rejected this decode's registration: {error}"
            return "rejected"
        self._rejected.pop(message.agent, None)
        return "handled"

    def _metadata(self, message: wire.Metadata, frames: list[bytes]) -> Result:
        manager, room = self._manager, message.room
        with self._lock:
            reason = self._ended.owed(room, message.agent, time.monotonic())
            if reason is None and message.agent not in manager.decode_kv_args_table:
                reason = self._rejected.get(message.agent, "prefill knows no registration of this decode")
                self._fail(room, reason)
            if reason is None:
                return self._install(message, frames)
        self._tell([(message.sender.ip, message.sender.port)], room, reason)
        return "stale"

    def _install(self, message: wire.Metadata, frames: list[bytes]) -> Result:
        manager, room = self._manager, message.room
        infos = manager.transfer_infos.setdefault(room, {})
        if message.agent in infos and manager.check_status(room) >= KVPoll.Transferring:
            return "stale"
        infos[message.agent] = TransferInfo.from_zmq(frames[1:])
        manager.accounts.ledger.identify(room, peer=f"{message.sender.ip}:{message.sender.port}")
        if len(infos) >= message.needed:
            manager.resolve_kv_replica_factor(infos)
            lengths = (info.decode_prefix_len for info in infos.values())
            manager.req_to_decode_prefix_len[room] = next((length for length in lengths if length is not None), 0)
            manager.update_status(room, KVPoll.WaitingForInput)
        return "handled"

    def _abort(self, message: wire.Abort, frames: list[bytes]) -> Result:
        room = message.room
        with self._lock:
            known = room in self._manager.request_status
            self._manager._handle_abort_notification(frames)
            if not known and self._ended.dig_up(room, time.monotonic()) is None:
                self._doomed.bury(room, "decode aborted the room before prefill began it", time.monotonic())
        return "handled" if known else "stale"

    def _fail(self, room: int, reason: str) -> None:
        """End a room that may have no sender yet."""
        if room in self._manager.request_status:
            self._manager.record_failure(room, reason)
            self._manager.update_status(room, KVPoll.Failed)
        else:
            self._doomed.bury(room, reason, time.monotonic())

    def _registered(self) -> Iterable[tuple[str, int]]:
        return [(peer.endpoint, peer.dst_port) for peer in list(self._manager.decode_kv_args_table.values())]

    def _tell(self, targets: list[tuple[str, int]], room: int, reason: str) -> None:
        self._manager.send_kv_status_message(
            targets=targets, bootstrap_room=room, status=KVPoll.Failed, failure_reason=reason
        )


class ReliableKVSender(NixlKVSender):
    """Tells decode whenever prefill gives the room up, in whatever phase."""

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *args: Any, **kwargs: Any) -> None:
        self._gave_up = self._reporting = False
        doomed = mgr.prefill.opened(bootstrap_room)
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)
        if doomed is not None:
            mgr.record_failure(bootstrap_room, doomed)
            mgr.update_status(bootstrap_room, KVPoll.Failed)

    def send(self, kv_indices: Any, *args: Any, **kwargs: Any) -> None:
        self.kv_mgr.accounts.sized(self.bootstrap_room, len(kv_indices), self.kv_mgr.page_bytes)
        super().send(kv_indices, *args, **kwargs)

    def abort(self) -> None:
        super().abort()
        self._give_up("prefill aborted the request")

    def _check_bootstrap_timeout(self) -> Any:
        status = super()._check_bootstrap_timeout()
        if status == KVPoll.Failed:
            self._give_up("prefill waited too long for the metadata of the room")
        return status

    def clear(self) -> None:
        if KVPoll.Failed in (self.conclude_state, self.kv_mgr.request_status.get(self.bootstrap_room)):
            self._give_up(self.kv_mgr.failure_records.get(self.bootstrap_room, "the room failed on prefill"))
        self.kv_mgr.accounts.failed(self.bootstrap_room, self.kv_mgr.failure_records.get(self.bootstrap_room))
        super().clear()
        if not self._reporting:
            # Upstream would take it for the failure of the next room of this number.
            self.kv_mgr.failure_records.pop(self.bootstrap_room, None)

    def failure_exception(self) -> None:
        self._reporting = True
        super().failure_exception()

    def _give_up(self, reason: str) -> None:
        if not self._gave_up:
            self._gave_up = True
            self.kv_mgr.prefill.ended(self.bootstrap_room, reason)
