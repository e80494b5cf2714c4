"""Puts decode's held pages into a :class:`~.quarantine.Quarantine`: hooks on upstream's queue, and the proof of death.

Upstream's ``DecodeTransferQueue`` holds the pages of a failed request until all its prefill ranks acknowledged, or for
30 s; all tensor-parallel ranks agree on it by a collective each step. That stays as it is: we lengthen the time, and a
dead prefill counts as one that acknowledged.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from typing import Any

from sglang.srt.disaggregation.reliable.control import Supervisor
from sglang.srt.disaggregation.reliable.quarantine import Quarantine, Release, Writer
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver
from sglang_pd.environ import envs

logger = logging.getLogger(__name__)

# How often a rank is probed that did not acknowledge, and how long it may take to answer, in seconds.
PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 1.0


def hold(queue: Any, decode_req: Any) -> None:
    """BEFORE hook on ``DecodeTransferQueue._defer_release``."""
    receiver = decode_req.kv_receiver
    if isinstance(receiver, ReliableKVReceiver):
        queue.deferred_kv_release_timeout = envs.SGLANG_PD_QUARANTINE_TIMEOUT.get()
        ranks = getattr(receiver, "bootstrap_infos", None) or ()
        writers = frozenset(Writer(rank["rank_ip"], int(rank["rank_port"])) for rank in ranks)
        receiver.held = receiver.kv_mgr.quarantine.hold(
            receiver.bootstrap_room, receiver.pages, receiver.bootstrap_addr, writers
        )


def release(queue: Any, decode_req: Any, idx: int) -> None:
    """BEFORE hook on ``DecodeTransferQueue._do_release``, which upstream calls once all ranks allow it."""
    receiver = decode_req.kv_receiver
    held = getattr(receiver, "held", None)
    if held is None:
        return
    manager, receiver.held = receiver.kv_mgr, None
    result = manager.quarantine.release(held, manager.has_acknowledged(receiver))
    if result is Release.TIMEOUT:
        logger.error(
            "PD pages given back without a proof that nothing writes to them: room=%d pages=%d peer=%s after %.0f s. "
            "Its prefill neither acknowledged the abort nor is it gone: if it hangs, restart it.",
            held.room,
            held.pages,
            held.peer,
            manager.quarantine.age(held),
        )


def forget(result: None, queue: Any) -> None:
    """AFTER hook on ``DecodeTransferQueue.release_memory_occupation``: the pool is gone."""
    manager = queue.scheduler.disagg_decode_prealloc_queue.kv_manager
    if isinstance(manager, Holding):
        manager.quarantine.clear()


class Holding:
    """The part of a KV manager that keeps a quarantine; to stand before upstream's manager among the bases."""

    control: Supervisor
    _deferred_abort_ack_tracker: dict[int, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.quarantine = Quarantine()
        super().__init__(*args, **kwargs)

    def watch_writers(self) -> None:
        """Start the thread that finds out which of the awaited prefill ranks are gone; decode's alone."""
        self.control.start("quarantine", lambda: _probe_for_ever(self.quarantine))

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """Upstream asks whether every prefill rank acknowledged; a dead one need not."""
        safe: bool = super().is_abort_release_safe(bootstrap_room, required_acks)  # type: ignore[misc]
        return safe or self.quarantine.is_dead(bootstrap_room)

    def has_acknowledged(self, receiver: Any) -> bool:
        """Whether all prefill ranks of a held room acknowledged, or none was asked: another rank's hold then."""
        if not receiver.abort_notified:
            return True
        return bool(
            super().is_abort_release_safe(  # type: ignore[misc]
                receiver.bootstrap_room, len(receiver.bootstrap_infos)
            )
        )


def _probe_for_ever(quarantine: Quarantine) -> None:
    while True:
        quarantine.wait_for_writers()
        # Most acknowledge within milliseconds.
        time.sleep(PROBE_EVERY_S)
        for writer in sorted(quarantine.wait_for_writers(timeout=0)):
            if is_gone(writer):
                logger.warning("prefill rank %s:%d is gone: its writes are over", writer.ip, writer.port)
                quarantine.died(writer)


def is_gone(writer: Writer) -> bool:
    """Whether the rank's process is proven to be gone: its machine answers that nobody listens on the port that the
    process listens on all its life. A stopped process, or a machine that does not answer, proves nothing."""
    try:
        socket.create_connection((writer.ip, writer.port), PROBE_TIMEOUT_S).close()
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return False
