"""Prefill's transfers: lanes per peer, a deadline on progress, and no partial KV."""

from __future__ import annotations

import threading
import time
from typing import Any

from sglang.srt.disaggregation.common.utils import TransferKVChunk

from sglang.srt.disaggregation.reliable import handles as nixl_handles
from sglang.srt.disaggregation.reliable.handles import TransferStalledError
from sglang.srt.disaggregation.reliable.lanes import Lane, Lanes, Peers
from sglang_pd.environ import envs

# How often a lane looks whether its stalled peer goes on, in seconds.
STALL_POLL_S = 0.02


class Transport:
    """``manager`` is prefill's ``ReliableKVManager``; ``work`` is upstream's worker, which takes chunks from a lane."""

    def __init__(self, manager: Any, work: Any) -> None:
        self._manager = manager
        self._upstream_work = work
        self._timeout_s = envs.SGLANG_PD_TRANSFER_TIMEOUT.get()
        self._lanes = Lanes(envs.SGLANG_PD_ROOMS_PER_PEER.get(), self._work, self._admit, self._fail)
        self._here = threading.local()
        self._lock = threading.Lock()
        self._stalled: dict[Peers, list[Any]] = {}

    def put(self, room: int, chunk: TransferKVChunk) -> bool:
        """Queue a chunk for the room's peers; False where upstream's shared workers must take it."""
        infos = dict(self._manager.transfer_infos.get(room, {}))
        peers = [self._manager.decode_kv_args_table.get(agent) for agent in infos]
        # Staging and packing own one buffer per shared worker.
        if self._manager.enable_staging or any(peer is not None and peer.requires_dcp_relayout for peer in peers):
            return False
        pages = len(chunk.prefill_kv_indices)
        for info in infos.values():
            if not info.is_dummy and len(info.dst_kv_indices[chunk.index_slice]) < pages:
                reason = f"prefill has {pages} pages for {chunk.index_slice}, decode {len(info.dst_kv_indices)} in all"
                self._manager.conclude_failure(bootstrap_room=room, failure_reason=reason)
                return True
        self._lanes.put(frozenset(infos), chunk)
        return True

    def await_handles(self, handles: list[Any], failure_seen: bool) -> tuple[bool, bool]:
        """What upstream's worker asks for: whether every handle has ended, and whether the batch failed.

        Raises ``TransferError`` with the true reason for a batch that had not failed before.
        """
        state_of = self._manager.agent.check_xfer_state
        if failure_seen:
            stalled = self.stalled(getattr(self._here, "peers", frozenset()))
            return nixl_handles.settled(state_of, handles, 0.0 if stalled else nixl_handles.SETTLE_S), True
        try:
            nixl_handles.await_done(state_of, handles, self._timeout_s)
        except TransferStalledError:
            with self._lock:
                # Kept, too: a handle that is released while it runs is one that nobody can ask any more.
                self._stalled.setdefault(self._here.peers, []).extend(handles)
            raise
        return True, False

    def stalled(self, peers: Peers) -> bool:
        """Whether writes to these peers ran out of time and have not ended since."""
        with self._lock:
            state_of = self._manager.agent.check_xfer_state
            running = [
                handle
                for handle in self._stalled.pop(peers, [])
                if nixl_handles.condition(state_of, handle) == "running"
            ]
            if running:
                self._stalled[peers] = running
            return bool(running)

    def _work(self, peers: Peers, lane: Lane) -> None:
        self._here.peers = peers
        self._upstream_work(lane)

    def _admit(self, peers: Peers, chunk: TransferKVChunk, queued_s: float) -> bool:
        """Hold a chunk back while its peers are stalled; their writes go on by themselves when the peers do."""
        while self.stalled(peers):
            if time.monotonic() - queued_s > self._timeout_s:
                self._end_unsent(chunk, "earlier writes to this decode are not done: it has stopped or is unreachable")
                return False
            time.sleep(STALL_POLL_S)
        return True

    def _fail(self, chunk: TransferKVChunk, error: Exception) -> None:
        self._end_unsent(chunk, f"the transfer worker failed: {type(error).__name__}: {error}")

    def _end_unsent(self, chunk: TransferKVChunk, reason: str) -> None:
        self._manager.conclude_failure(bootstrap_room=chunk.room, failure_reason=reason)
        self._manager._maybe_ack_drained_abort(chunk.room)
