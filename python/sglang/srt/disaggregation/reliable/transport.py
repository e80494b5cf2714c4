"""Prefill's transfers: one lane per decode, no partial KV, and each room told once that it is complete."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.utils import TransferKVChunk

from sglang.srt.disaggregation.reliable import handles as nixl_handles
from sglang.srt.disaggregation.reliable.batching import Limits
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.lanes import Inbox, Lanes, Peers
from sglang.srt.disaggregation.reliable.links import Links
from sglang.srt.disaggregation.reliable.pump import Patience, Pump
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.status_lanes import Lane, lane
from sglang.srt.disaggregation.reliable.tally import Tally
from sglang.srt.disaggregation.reliable.writes import Send, is_plain
from sglang_pd.environ import envs

logger = logging.getLogger(__name__)

MIB = 1 << 20


class Transport:
    """``manager`` is prefill's ``ReliableKVManager``. It is what a pump knows of rooms (:class:`~.pump.Rooms`)."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._limits = Limits(envs.SGLANG_PD_MIB_IN_FLIGHT.get() * MIB, envs.SGLANG_PD_MIB_PER_WRITE.get() * MIB)
        self._patience = Patience(envs.SGLANG_PD_TRANSFER_TIMEOUT.get(), envs.SGLANG_PD_RECONNECT_TIMEOUT.get())
        self._lanes: Lanes[Send] = Lanes(self._pump)
        # The running lanes.
        self._pumps: dict[Inbox[Send], tuple[Peers, Pump]] = {}
        self._tally = Tally()
        self._counting = threading.Lock()
        self.links = Links(manager)

    def put(self, room: int, chunk: TransferKVChunk) -> bool:
        """Queue a chunk of a room whose metadata is known; False where upstream's shared workers must take it."""
        manager = self._manager
        infos = manager.transfer_infos.get(room)
        if infos is None:
            # It ended since.
            return True
        targets = tuple(info for info in list(infos.values()) if not info.is_dummy)
        peers = [manager.decode_kv_args_table.get(info.agent_name) for info in targets]
        # Staging and packing own one buffer per shared worker.
        if manager.enable_staging or any(peer is not None and peer.requires_dcp_relayout for peer in peers):
            return False
        pages = len(chunk.prefill_kv_indices)
        if None in peers:
            text = failure(Reason.REGISTRATION_FAILED, "prefill knows no registration of this decode")
        elif any(len(info.dst_kv_indices[chunk.index_slice]) < pages for info in targets):
            known = min(len(info.dst_kv_indices) for info in targets)
            detail = f"prefill has {pages} pages for {chunk.index_slice}, decode {known} in all"
            text = failure(Reason.LENGTH_MISMATCH, detail)
        else:
            agents = frozenset(info.agent_name for info in targets)
            send = Send(
                chunk=chunk,
                infos=infos,
                targets=targets,
                bytes=pages * manager.page_bytes,
                alone=not is_plain(manager, chunk, agents),
                queued=time.monotonic(),
            )
            self._tally.queued(send)
            self._lanes.put(agents, send)
            return True
        manager.conclude_failure(bootstrap_room=room, failure_reason=text)
        return True

    def _pump(self, peers: Peers, inbox: Inbox[Send], closed: Callable[[], bool]) -> None:
        pump = Pump(self._manager, self.links, self, self._limits, self._patience)
        self._pumps[inbox] = peers, pump
        try:
            pump.run(inbox, closed)
        finally:
            del self._pumps[inbox]

    def lanes(self, now: float) -> list[Lane]:
        """Every lane as it is at the monotonic time ``now``; waits for none."""
        known = self._manager.decode_kv_args_table
        found = []
        for inbox, (peers, pump) in list(self._pumps.items()):
            infos = [info for agent in peers if (info := known.get(agent)) is not None]
            addresses = [f"{info.endpoint}:{info.dst_port}" for info in infos]
            found.append(lane(peers, addresses, inbox.waiting(), pump.load(), now))
        return found

    # What pumps ask and tell.

    def is_live(self, send: Send) -> bool:
        manager, room = self._manager, send.room
        # Another table of the same number is another room.
        if manager.transfer_infos.get(room) is not send.infos:
            return False
        return manager.request_status.get(room, KVPoll.Failed) != KVPoll.Failed

    def begin(self, send: Send) -> None:
        with self._counting:
            self._manager._staging_outstanding[send.room] += 1
        self._manager.update_status(send.room, KVPoll.Transferring)

    def end(self, send: Send) -> None:
        outstanding, room = self._manager._staging_outstanding, send.room
        with self._counting:
            outstanding[room] -= 1
            if outstanding[room] <= 0:
                del outstanding[room]
        self._manager._maybe_ack_drained_abort(room)

    def written(self, sends: list[Send]) -> None:
        complete: list[Send] = [send for send in sends if self._tally.written(send)]
        delivered: dict[tuple[str, str, int], list[int]] = {}
        for send in complete:
            if self._conclude(send):
                for info in send.targets:
                    delivered.setdefault((info.agent_name, info.endpoint, info.dst_port), []).append(send.room)
        for (agent, ip, port), rooms in delivered.items():
            self._manager.prefill.tell_delivered(agent, ip, port, rooms)

    def _conclude(self, send: Send) -> bool:
        """The room's last chunk arrived; returns whether decode is to be told of its success."""
        manager, room = self._manager, send.room
        if manager.transfer_infos.get(room) is not send.infos:
            return False
        status = manager.conclude_transfer(bootstrap_room=room, status=KVPoll.Success, targets=[])
        manager.transfer_infos.pop(room, None)
        manager.req_to_decode_prefix_len.pop(room, None)
        # A failed room was told when it failed. With a deferred bootstrap its sender tells of the success.
        return status == KVPoll.Success and manager.deferred_bootstrap is None

    def fail(self, send: Send, reason: Failure) -> None:
        if self.is_live(send):
            self._manager.conclude_failure(bootstrap_room=send.room, failure_reason=reason)

    def drop(self, send: Send) -> None:
        self._manager._maybe_ack_drained_abort(send.room)

    def forget(self, agent: str) -> None:
        """A decode is gone: give back everything that was kept for it."""
        self.links.forget(agent)
        self._lanes.stop(agent)

    def cleared(self, room: int) -> None:
        """The room's sender is done with it."""
        self._tally.forget(room)

    # For upstream's shared workers.

    def reconnect(self, agents: list[str]) -> None:
        """A write of theirs failed, and nothing of theirs is in flight."""
        for agent in agents:
            try:
                self.links.close(agent, self.links.epoch(agent))
                self.links.epoch(agent)
            except Exception:
                # NIXL's errors have no common base; it is tried again when the next write fails.
                logger.exception("decode %s cannot be connected to", agent)

    def await_handles(self, handles: list[Any], failure_seen: bool) -> tuple[bool, bool]:
        """What upstream's worker asks for: whether every handle has ended, and whether the batch failed.

        Raises ``TransferError`` with the true reason for a batch that had not failed before.
        """
        state_of = self._manager.agent.check_xfer_state
        if failure_seen:
            return nixl_handles.settled(state_of, handles), True
        nixl_handles.await_done(state_of, handles, self._patience.write_s)
        return True, False
