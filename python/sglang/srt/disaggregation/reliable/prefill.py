"""Prefill's side of the control plane."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.staging_handler import handle_staging_rsp, handle_watermark_msg
from sglang.srt.disaggregation.nixl.conn import TransferInfo

from sglang.srt.disaggregation.reliable import pulse, stamps, told, wire
from sglang.srt.disaggregation.reliable.control import Result
from sglang.srt.disaggregation.reliable.deliveries import Deliveries
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.outbox import PeerUnreachableError, endpoint
from sglang.srt.disaggregation.reliable.peers import Peers
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.stamps import Stamp
from sglang.srt.disaggregation.reliable.tombstones import Tombstones

logger = logging.getLogger(__name__)


class PrefillControl:
    """Acts on what decode ranks send to this prefill rank; ``manager`` is its ``ReliableKVManager``.

    A room has ended when its sender gave it up. Decode is told at once: it holds the room's pages until our
    acknowledgement, which comes when nothing of it is in flight. Only where upstream's deferred release is switched off
    the pages count as free from then on, and the message waits instead.
    """

    thread: ClassVar[str] = "prefill-control"

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        # The control thread installs metadata while the scheduler ends rooms: one lock decides which came first.
        self._lock = threading.RLock()
        self._ended = Tombstones(keep_s=manager.bootstrap_timeout)
        self._doomed = Tombstones(keep_s=manager.bootstrap_timeout)
        self._deliveries = Deliveries(keep_s=manager.bootstrap_timeout)
        self._untold: dict[int, tuple[str, list[tuple[str, int]]]] = {}
        self.peers = Peers(manager)

    def stamped(self, address: str, frames: list[bytes]) -> list[bytes]:
        return self.peers.stamped(address, frames)

    def handle(self, frames: list[bytes]) -> tuple[str, Result]:
        stamp, plain = stamps.take(frames)
        message = wire.parse_to_prefill(plain)
        match message:
            case wire.Ping():
                pulse.answer(self._manager, message)
            case wire.Pong():
                return message.kind, self._pong(message, stamp)
            case wire.Registration():
                return message.kind, self._registration(message, stamp, plain)
            case wire.Metadata():
                return message.kind, self._metadata(message, stamp, plain)
            case wire.Abort():
                return message.kind, self._abort(message, stamp, plain)
            case wire.Watermark():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                handle_watermark_msg(self._manager._staging_ctx, list(plain))
            case wire.StagingResponse():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                handle_staging_rsp(list(plain), self._manager.transfer_infos)
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
                targets += [target for target in self.peers.endpoints() if target not in targets]
            serials = {agent: _serial(info) for agent, info in known.items()}
            self._ended.bury(room, reason, time.monotonic(), told=serials)
            self._untold[room] = (reason, targets)
        self.drained(room)

    def drained(self, room: int) -> None:
        """Tell decode about the room if it has ended; upstream calls this whenever its writes may be over."""
        manager = self._manager
        if manager._staging_outstanding.get(room, 0) > 0 and not manager.enable_deferred_decode_kv_release:
            return
        reason, targets = self._untold.pop(room, ("", []))
        self._tell(targets, room, reason)

    def delivered(self, room: int) -> None:
        """Everything of the room has arrived, and decode is about to be told."""
        infos = self._manager.transfer_infos.get(room, {})
        serials = {agent: serial for agent, info in infos.items() if (serial := _serial(info)) is not None}
        if serials:
            with self._lock:
                self._deliveries.note(room, serials, time.monotonic())

    def tell_delivered(self, agent: str, ip: str, port: int, rooms: list[int]) -> None:
        """Tell a decode that everything of these rooms has arrived; called by its lane's thread."""
        manager = self._manager
        if self.peers.protocol(agent):
            self._send((ip, port), wire.Delivered(manager._prefill_unique_rank(), tuple(rooms)).frames())
            return
        for room in rooms:
            manager.send_kv_status_message(targets=[(ip, port)], bootstrap_room=room, status=KVPoll.Success)

    def lost(self, address: str, since: float) -> None:
        """A decode is gone: end its rooms, and give back everything that was kept for it. One that registered there
        after it is another."""
        self._gone(self.peers.at(address, until=since), failure(Reason.PEER_LOST, f"decode {address} is gone"))

    def peers_of_ours(self) -> dict[str, bool]:
        """The addresses of decodes that answer a ping; for each, whether it is an IPv6 one."""
        return self.peers.of_ours()

    def silent(self, address: str, text: str) -> None:
        """A decode does not answer: end its rooms. It may come back."""
        self._end_rooms(self.peers.at(address), failure(Reason.PEER_SILENT, f"decode {text}"))

    def _gone(self, agents: set[str], reason: Failure) -> None:
        logger.warning("%s: it had %d registrations", reason, len(agents))
        self._end_rooms(agents, reason)
        self.peers.forget(agents)

    def _end_rooms(self, agents: set[str], reason: Failure) -> None:
        with self._lock:
            for room, infos in list(self._manager.transfer_infos.items()):
                if agents & infos.keys() and self._manager.request_status.get(room) != KVPoll.Failed:
                    self._fail(room, reason)

    # Control messages.

    def _registration(self, message: wire.Registration, stamp: Stamp, frames: Sequence[bytes]) -> Result:
        address, _ = endpoint(message.sender.ip, message.sender.port)
        # A process listens on its port all its life: whoever did so before is gone.
        if before := self.peers.at(address) - {message.agent}:
            self._gone(before, failure(Reason.PEER_REPLACED, f"another process listens at {address}"))
        return "handled" if self.peers.register(message, stamp, frames) else "rejected"

    def _pong(self, message: wire.Pong, stamp: Stamp) -> Result:
        self._manager.pulse.heard(message.address, time.monotonic())
        there = self.peers.at(message.address)
        before = {agent for agent in there if self.peers.incarnation(agent) not in (None, stamp.sender)}
        if before:
            self._gone(before, failure(Reason.PEER_REPLACED, f"another process listens at {message.address}"))
        return "handled" if there else "stale"

    def _metadata(self, message: wire.Metadata, stamp: Stamp, frames: Sequence[bytes]) -> Result:
        room, sender = message.room, (message.sender.ip, message.sender.port)
        rank = self._manager._prefill_unique_rank()
        with self._lock:
            if stamp.serial is not None and self._deliveries.has(room, message.agent, stamp.serial):
                self._send(sender, wire.Delivered(rank, (room,)).frames())
                return "stale"
            reason = self._ended.owed(room, message.agent, time.monotonic(), stamp.serial)
            if reason is None:
                refusal = self.peers.refusal(message.agent)
                if refusal is None and not stamp.is_for_another:
                    return self._install(message, stamp, frames)
                if refusal is None or (stamp.protocol and refusal.reason is Reason.REGISTRATION_FAILED):
                    self._send(sender, wire.Unregistered(room, rank).frames())
                    return "rejected"
                self._fail(room, refusal)
                reason = refusal
        self._tell([sender], room, reason)
        return "stale"

    def _install(self, message: wire.Metadata, stamp: Stamp, frames: Sequence[bytes]) -> Result:
        manager, room = self._manager, message.room
        if stamp.attempt:
            received = wire.Received(room, manager._prefill_unique_rank())
            self._send((message.sender.ip, message.sender.port), received.frames())
        infos = manager.transfer_infos.setdefault(room, {})
        known = infos.get(message.agent)
        if known is not None:
            again = stamp.serial is not None and _serial(known) == stamp.serial
            if again or manager.check_status(room) >= KVPoll.Transferring:
                return "stale"
        infos[message.agent] = info = TransferInfo.from_zmq(frames[1:])
        info.serial = stamp.serial
        peer = f"{message.sender.ip}:{message.sender.port}"
        manager.accounts.ledger.identify(room, peer=peer, incarnation=stamp.sender)
        if len(infos) >= message.needed:
            manager.resolve_kv_replica_factor(infos)
            lengths = (info.decode_prefix_len for info in infos.values())
            manager.req_to_decode_prefix_len[room] = next((length for length in lengths if length is not None), 0)
            manager.update_status(room, KVPoll.WaitingForInput)
        return "handled"

    def _abort(self, message: wire.Abort, stamp: Stamp, frames: Sequence[bytes]) -> Result:
        room = message.room
        with self._lock:
            known = room in self._manager.request_status
            self._manager.accounts.aborted_by_decode(room, message.reason)
            asks = message.generation is not None
            self._manager._handle_abort_notification(list(frames if asks else frames[: wire.ABORT_WITH_GENERATION - 1]))
            if not known and not stamp.is_for_another and not self._ended.covers(room, time.monotonic()):
                reason = told.abort_of_decode(message.reason)
                detail = "decode aborted the room before prefill began it"
                self._doomed.bury(room, failure(reason, detail), time.monotonic())
        return "handled" if known else "stale"

    def _fail(self, room: int, reason: str) -> None:
        """End a room that may have no sender yet."""
        if room in self._manager.request_status:
            self._manager.record_failure(room, reason)
            self._manager.update_status(room, KVPoll.Failed)
        else:
            self._doomed.bury(room, reason, time.monotonic())

    def _send(self, target: tuple[str, int], frames: list[bytes]) -> None:
        address, ipv6 = endpoint(*target)
        try:
            self._manager.outbox.send(address, self.peers.stamped(address, frames), ipv6)
        except PeerUnreachableError as error:
            logger.warning("decode %s was not sent %s: %s", address, frames[0].decode(), error)

    def _tell(self, targets: list[tuple[str, int]], room: int, reason: str) -> None:
        self._manager.send_kv_status_message(
            targets=targets, bootstrap_room=room, status=KVPoll.Failed, failure_reason=reason
        )


def _serial(info: Any) -> int | None:
    """Which metadata of decode's a ``TransferInfo`` was made from; None where decode does not number them."""
    return getattr(info, "serial", None)
