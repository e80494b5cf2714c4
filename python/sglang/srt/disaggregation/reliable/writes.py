"""Posting KV and auxiliary data to NIXL: chunks of several rooms in one write, or one chunk alone.

What a write covers: each chunk's pages in every layer, and with a room's last chunk its auxiliary data (first token,
room number) and state. Chunks that fit upstream's prepared descriptor lists share a write; any other, of a decode with
another tensor-parallel size, mixed memory or extra state, goes through upstream's own functions by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sglang.srt.disaggregation.reliable import pages
from sglang.srt.disaggregation.reliable.nixl_errors import WriteError

HOST_MEMORY = "DRAM"


@dataclass(slots=True, eq=False)
class Send:
    """A queued chunk. ``infos``: the room's entry in the manager's table, by agent; ``targets``: those of them that are
    written to. ``bytes``: its KV. ``alone``: it must not share a write. ``queued``: monotonic seconds. ``errors``: how
    often a write of it alone failed, the connection aside."""

    chunk: Any
    infos: dict[str, Any]
    targets: tuple[Any, ...]
    bytes: int
    alone: bool
    queued: float
    errors: int = 0

    @property
    def room(self) -> int:
        return self.chunk.room


@dataclass(slots=True, eq=False)
class Write:
    """Chunks that were posted together. ``epochs``: the connection used, by agent. ``running``: NIXL's handles that are
    not done. ``error``: the first; its siblings may still run. ``lost``: NIXL cannot say whether one of them does."""

    sends: Sequence[Send]
    posted: float
    epochs: dict[str, int] = field(default_factory=dict)
    running: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    error_at: float = 0.0
    lost: bool = False

    @property
    def bytes(self) -> int:
        return sum(send.bytes for send in self.sends)

    def fail(self, error: BaseException, now: float) -> None:
        if self.error is None:
            self.error, self.error_at = error, now

    def look(self, state_of: Callable[[Any], str], now: float) -> None:
        """Ask NIXL about every handle that runs. One that NIXL cannot be asked about any more counts as running."""
        running = []
        for handle in self.running:
            try:
                state = state_of(handle)
            except Exception as error:  # noqa: BLE001 (NIXL's errors have no common base; it is the write's outcome)
                self.fail(error, now)
                self.lost = True
                running.append(handle)
                continue
            if state == "ERR":
                self.fail(WriteError("NIXL reports ERR for a write"), now)
            elif state != "DONE":
                running.append(handle)
        self.running = running


def is_plain(manager: Any, chunk: Any, agents: Iterable[str]) -> bool:
    """Whether the chunk's pages are written by prepared lists of whole pages, so that it may share a write."""
    if chunk.state_indices:
        return False
    whole_pages = manager.is_mla_backend or manager.is_hybrid_mla_backend
    for agent in agents:
        peer = manager.decode_kv_args_table.get(agent)
        if peer is None or peer.dst_homogeneous_mem_kind is None:
            return False
        if not whole_pages and peer.decode_tp_size != manager.attn_tp_size:
            return False
    return True


def post(manager: Any, write: Write) -> None:
    """Post everything; ``write.running`` holds what NIXL has taken, also where this raises NIXL's error."""
    for send in write.sends:
        if send.chunk.indices_event is not None:
            send.chunk.indices_event.synchronize()
    if write.sends[0].alone:
        _post_alone(manager, write, write.sends[0])
    else:
        _post_together(manager, write)


def _post_together(manager: Any, write: Write) -> None:
    by_agent: dict[str, list[tuple[Any, Any]]] = {}
    for send in write.sends:
        for info in send.targets:
            by_agent.setdefault(info.agent_name, []).append((send.chunk, info))
    for agent, pairs in by_agent.items():
        filled = [(chunk, info) for chunk, info in pairs if len(chunk.prefill_kv_indices)]
        if filled and manager.kv_args.kv_data_ptrs:
            _post_pages(manager, write, agent, filled)
        last = [(chunk.prefill_aux_index, info.dst_aux_index) for chunk, info in pairs if chunk.is_last_chunk]
        if last:
            _post_aux(manager, write, agent, last)


def _post_pages(manager: Any, write: Write, agent: str, pairs: list[tuple[Any, Any]]) -> None:
    peer = manager.decode_kv_args_table[agent]
    slots = peer.dst_num_slots if peer.dst_num_slots is not None else manager._num_slots_src
    regions = len(manager.kv_args.kv_item_lens)
    source = pages.join([chunk.prefill_kv_indices for chunk, _ in pairs])
    target = pages.join([_target_pages(chunk, info) for chunk, info in pairs])
    handle = manager.agent.make_prepped_xfer(
        "WRITE",
        manager.prep_handles[""],
        pages.entries(source, regions, manager._num_slots_src),
        manager.prep_handles[agent],
        pages.entries(target, regions, slots),
    )
    _start(manager, write, handle)


def _target_pages(chunk: Any, info: Any) -> Any:
    return info.dst_kv_indices[chunk.index_slice][: len(chunk.prefill_kv_indices)]


def _post_aux(manager: Any, write: Write, agent: str, slots: list[tuple[int, int]]) -> None:
    """Copy the auxiliary data from our slots to decode's; ``slots``: pairs of theirs."""
    nixl, args = manager.agent, manager.kv_args
    peer = manager.decode_kv_args_table[agent]
    sides = zip(args.aux_data_ptrs, peer.dst_aux_ptrs, args.aux_item_lens, strict=False)
    rows = [(ours + size * here, theirs + size * there, size) for ours, theirs, size in sides for here, there in slots]
    table = np.array(rows, np.uint64).reshape(-1, 3)
    here, there = (np.stack([table[:, column], table[:, 2], np.zeros(len(table), np.uint64)], 1) for column in (0, 1))
    handle = nixl.initialize_xfer(
        "WRITE", nixl.get_xfer_descs(here, HOST_MEMORY), nixl.get_xfer_descs(there, HOST_MEMORY), agent
    )
    _start(manager, write, handle)


def _start(manager: Any, write: Write, handle: Any) -> None:
    # It is the write's before it is posted: what a failed post leaves behind is released with it.
    write.running.append(handle)
    state = manager.agent.transfer(handle)
    if state == "ERR":
        raise WriteError("NIXL reports ERR for a write it was to start")
    if state == "DONE":
        write.running.pop()


def _post_alone(manager: Any, write: Write, send: Send) -> None:
    chunk = send.chunk
    for info in send.targets:
        peer = manager.decode_kv_args_table[info.agent_name]
        if len(chunk.prefill_kv_indices) and manager.kv_args.kv_data_ptrs:
            write.running.extend(_upstream_pages(manager, chunk, info, peer))
        if not chunk.is_last_chunk:
            continue
        if chunk.state_indices:
            write.running.extend(
                manager.maybe_send_extra(
                    info.agent_name,
                    chunk.state_indices,
                    peer.dst_state_data_ptrs,
                    info.dst_state_indices,
                    peer.gpu_id,
                    peer.decode_tp_size,
                    decode_tp_rank=peer.decode_tp_rank,
                    dst_state_item_lens=peer.dst_state_item_lens,
                    dst_state_dim_per_tensor=peer.dst_state_dim_per_tensor,
                    dst_state_layer_ids=peer.dst_state_layer_ids,
                )
            )
        _post_aux(manager, write, info.agent_name, [(chunk.prefill_aux_index, info.dst_aux_index)])


def _upstream_pages(manager: Any, chunk: Any, info: Any, peer: Any) -> list[Any]:
    source, target = chunk.prefill_kv_indices, _target_pages(chunk, info)
    if not (manager.is_mla_backend or manager.is_hybrid_mla_backend or peer.decode_tp_size == manager.attn_tp_size):
        return [manager.send_kvcache_slice(info.agent_name, source, target)]
    if peer.kv_xfer_segments is not None:
        return manager.send_kvcache_mixed(info.agent_name, source, target)
    handle = manager.send_kvcache(
        info.agent_name, source, peer.dst_kv_ptrs, target, peer.gpu_id, dst_mem_kind=peer.dst_homogeneous_mem_kind
    )
    return [] if handle is None else [handle]
