"""``--disaggregation-enable-kv-checksum``: a room whose KV is still to be compared has not been delivered yet.

Upstream compares when a request enters its first batch, long after its room was cleared. So the room stays live in the
phase ``verifying`` until then, and ends once, with what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.disaggregation.reliable import answers
from sglang.srt.disaggregation.reliable.phases import DecodePhase
from sglang.srt.disaggregation.reliable.reasons import Reason

# No digest is negative: what was sent is never this.
NO_DIGEST = -1

# Requests of this process that wait for their first batch, by their identity; held, so that it stays theirs.
_waiting: dict[int, Any] = {}


def is_due(req: Any) -> bool:
    """Whether the KV of ``req``, which decode's scheduler has just taken over, is still to be compared."""
    return getattr(req, "expected_kv_checksum", 0) != 0


def wait_for(req: Any) -> None:
    """Its room is ``verifying`` now."""
    _waiting[id(req)] = req


def compare(original: Callable[..., None], scheduler: Any, batch: Any) -> None:
    """AROUND hook on ``_verify_kv_checksums``, which takes out of the batch what is not as it was sent.

    A room that has ended by its deadline failed, and must not be served. But each tensor-parallel rank has its own
    clock, and all have to run the same batch: upstream makes them agree on the requests whose checksum is wrong, so it
    is made wrong here.
    """
    for req in batch.reqs:
        if is_due(req) and id(req) in _waiting and _phase(req) != DecodePhase.VERIFYING:
            req.expected_kv_checksum = NO_DIGEST
    original(scheduler, batch)
    for req in batch.reqs:
        if id(req) in _waiting:
            _end(req, Reason.DELIVERED)


def mismatched(scheduler: Any, req: Any, msg: str) -> None:
    """BEFORE hook on ``_handle_kv_checksum_mismatch``: on this rank or on another."""
    _end(req, Reason.CHECKSUM_MISMATCH)


def look_for_lost(result: None, scheduler: Any) -> None:
    """AFTER hook on ``process_decode_queue``, once a step: a request that waits for its first batch no more, and is in
    none, was aborted or taken back."""
    if _waiting:
        here = set(map(id, scheduler.waiting_queue))
        for req in [req for key, req in _waiting.items() if key not in here]:
            _end(req, Reason.RETRACTED if req.finished_reason is None else answers.wanted_end(req))


def _phase(req: Any) -> Any:
    accounts = answers.accounts_of(req)
    return None if accounts is None else accounts.ledger.phase(req.bootstrap_room)


def _end(req: Any, reason: Reason) -> None:
    _waiting.pop(id(req), None)
    accounts = answers.accounts_of(req)
    if accounts is not None and _phase(req) == DecodePhase.VERIFYING:
        accounts.ledger.end(req.bootstrap_room, reason.outcome, reason)
