"""Decode's side of the control plane."""

from __future__ import annotations

import logging
import time
from typing import Any, ClassVar

from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable import pulse, stamps, told, wire
from sglang.srt.disaggregation.reliable.bootstrap_server import INCARNATION
from sglang.srt.disaggregation.reliable.classify import classify
from sglang.srt.disaggregation.reliable.control import Result
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.phases import PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.receiver import is_ours
from sglang.srt.disaggregation.reliable.stamps import Stamp

logger = logging.getLogger(__name__)


class DecodeControl:
    """Acts on what prefill ranks send to this decode rank; ``manager`` is its ``ReliableKVManager``."""

    thread: ClassVar[str] = "decode-control"

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def stamped(self, address: str, frames: list[bytes]) -> list[bytes]:
        """What decode's rooms send goes through their mailboxes; the rest is upstream's staging."""
        return frames

    def handle(self, frames: list[bytes]) -> tuple[str, Result]:
        stamp, plain = stamps.take(frames)
        message = wire.parse_to_decode(plain)
        if stamp.is_for_another:
            return message.kind, "stale"
        match message:
            case wire.Ping():
                pulse.answer(self._manager, message)
            case wire.Pong():
                return message.kind, self._pong(message, stamp)
            case wire.Status():
                return message.kind, self._status(message)
            case wire.Delivered():
                return message.kind, self._delivered(message)
            case wire.Received():
                return message.kind, self._received(message)
            case wire.Unregistered():
                return message.kind, self._unregistered(message, stamp)
            case wire.ChunkReady():
                self._manager.handle_chunk_ready(list(plain))
            case wire.StagingRequest():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                self._manager._handle_staging_req(list(plain))
            case wire.AbortAck():
                self._manager.handle_abort_ack_message(list(plain))
        return message.kind, "handled"

    def lost(self, address: str, since: float) -> None:
        """A prefill rank is gone: end the rooms that wait for it, and ask anew who is there for the next."""
        manager = self._manager
        logger.warning("prefill rank %s is gone", address)
        with manager.connection_lock:
            stale = [key for key, ranks in manager.connection_pool.items() if _is_one_of(address, ranks)]
            for key in stale:
                del manager.connection_pool[key]
        for bootstrap_address in {key.rsplit("_", 3)[0] for key in stale}:
            manager.prefill_info_table.pop(bootstrap_address, None)
            manager.forget_layout(bootstrap_address)
        for room, receiver in list(manager.watch.ends.items()):
            waits = manager.request_status.get(room) not in (None, KVPoll.Success)
            if waits and _is_one_of(address, getattr(receiver, "bootstrap_infos", None)):
                manager.record_failure(room, failure(Reason.PEER_LOST, f"prefill rank {address} is gone"))
                manager.update_status(room, KVPoll.Failed)

    def peers_of_ours(self) -> dict[str, bool]:
        """The addresses of prefill ranks that answer a ping; for each, whether it is an IPv6 one."""
        with self._manager.connection_lock:
            ranks = [rank for ranks in self._manager.connection_pool.values() for rank in ranks]
        return dict(endpoint(rank["rank_ip"], int(rank["rank_port"])) for rank in ranks if is_ours(rank))

    def silent(self, address: str, text: str) -> None:
        """A prefill rank does not answer: end the rooms that wait for it. It may come back."""
        for receiver in list(self._manager.watch.ends.values()):
            if _is_one_of(address, getattr(receiver, "bootstrap_infos", None)) and receiver.is_waiting():
                receiver.give_up(failure(Reason.PEER_SILENT, f"prefill rank {text}"))

    def _pong(self, message: wire.Pong, stamp: Stamp) -> Result:
        self._manager.pulse.heard(message.address, time.monotonic())
        pool = list(self._manager.connection_pool.values())
        ranks = [rank for ranks in pool for rank in ranks if _is_one_of(message.address, [rank])]
        if any(rank.get(INCARNATION) not in (None, stamp.sender) for rank in ranks):
            self.lost(message.address, time.monotonic())
            return "stale"
        return "handled"

    def _status(self, message: wire.Status) -> Result:
        if self._manager.request_status.get(message.room, KVPoll.Failed) == KVPoll.Failed:
            # It is gone, or failed here before prefill said so: its first reason stays.
            return "stale"
        self._manager.apply_prefill_status(
            bootstrap_room=message.room,
            status=message.status,
            prefill_rank=message.rank,
            failure_reason=told_by_prefill(message.text, message.reason) if message.status == KVPoll.Failed else None,
        )
        return "handled"

    def _received(self, message: wire.Received) -> Result:
        receiver = self._manager.watch.ends.get(message.room)
        if receiver is None:
            return "stale"
        receiver.reminders.heard()
        return "handled"

    def _unregistered(self, message: wire.Unregistered, stamp: Stamp) -> Result:
        receiver = self._manager.watch.ends.get(message.room)
        if receiver is None or message.room not in self._manager.request_status:
            return "stale"
        receiver.register_again(stamp.sender)
        return "handled"

    def _delivered(self, message: wire.Delivered) -> Result:
        manager, known = self._manager, False
        for room in message.rooms:
            if room in manager.request_status:
                known = True
                manager.apply_prefill_status(
                    bootstrap_room=room, status=KVPoll.Success, prefill_rank=message.rank, failure_reason=None
                )
        return "handled" if known else "stale"


def told_by_prefill(text: str | None, reason: Reason | None) -> Failure:
    """What a room that prefill failed ends with here. A prefill of upstream's gives a text alone, or not even that."""
    if reason is None:
        # Upstream's prefill has one deadline, for decode's metadata.
        reason = classify(Role.PREFILL, PrefillPhase.BOOTSTRAPPING, text) if text else Reason.PEER_FAILED
    return failure(told.here(Role.PREFILL, reason), f"prefill said: {text or reason}")


def _is_one_of(address: str, ranks: list[dict[str, Any]] | None) -> bool:
    return any(endpoint(rank["rank_ip"], int(rank["rank_port"]))[0] == address for rank in ranks or ())
