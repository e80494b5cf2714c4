"""Upstream's scheduler as any thread can read it, whatever its loop does: batches and queues."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

# Where upstream's scheduler keeps what waits, each a list.
QUEUES: dict[str, Callable[[Any], Any]] = {
    name: operator.attrgetter(path)
    for name, path in {
        "waiting": "waiting_queue",
        "running": "running_batch.reqs",
        "prefill_bootstrap": "disagg_prefill_bootstrap_queue.queue",
        "prefill_inflight": "disagg_prefill_inflight_queue",
        "decode_prealloc": "disagg_decode_prealloc_queue.queue",
        "decode_retracted": "disagg_decode_prealloc_queue.retracted_queue",
        "decode_transfer": "disagg_decode_transfer_queue.queue",
    }.items()
}


class Turns:
    """What the rounds of the scheduler's loop show. One thread notes them, any may read. Times: monotonic seconds."""

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._forwards = 0
        self._batch_at: float | None = None

    def note(self, scheduler: Any, now: float) -> None:
        """The loop comes round."""
        self._scheduler = scheduler
        # Upstream's count of batches, idle ones of a data-parallel group included.
        forwards = getattr(scheduler, "forward_ct", 0)
        if forwards != self._forwards:
            self._forwards, self._batch_at = forwards, now

    def entry(self, now: float) -> dict[str, Any] | None:
        """None before the first round.

        ``batches``: launched so far. ``last_batch_seconds``: since the loop came round after the last one, None without
        any. ``in_batch``: whether one was launched since it last came round.
        """
        scheduler = self._scheduler
        if scheduler is None:
            return None
        batches = getattr(scheduler, "forward_ct", 0)
        return {
            "batches": batches,
            "last_batch_seconds": None if self._batch_at is None else round(now - self._batch_at, 3),
            "in_batch": batches != self._forwards,
            "queues": {name: _length(get, scheduler) for name, get in QUEUES.items()},
        }


turns = Turns()
"""Of this process's scheduler."""


def _length(get: Callable[[Any], Any], scheduler: Any) -> int | None:
    """None where this scheduler has no such queue."""
    try:
        found = get(scheduler)
    except AttributeError:
        return None
    return None if found is None else len(found)
