"""What a reason means on the other side of a transfer: a room ends on each side with what is true there; pure."""

from __future__ import annotations

from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

ABORTED_BY: dict[Role, Reason] = {Role.PREFILL: Reason.PREFILL_ABORT, Role.DECODE: Reason.DECODE_ABORT}

# About the hand-over itself, and so true on both sides whoever found it out. The others are about one process.
SHARED = frozenset(
    {
        Reason.METADATA_TIMEOUT,
        Reason.SEND_TIMEOUT,
        Reason.TRANSFER_TIMEOUT,
        Reason.REGISTRATION_TIMEOUT,
        Reason.ALLOCATION_TIMEOUT,
        Reason.PREFILL_NEVER_SENT,
        Reason.AUX_MISSING,
        Reason.REGISTRATION_FAILED,
        Reason.PEER_DISCONNECTED,
        Reason.PEER_INCOMPATIBLE,
        Reason.METADATA_INVALID,
        Reason.LENGTH_MISMATCH,
        Reason.CHECKSUM_MISMATCH,
        Reason.AUX_MISMATCH,
        Reason.NIXL_BACKEND,
        Reason.NIXL_INVALID,
        Reason.NIXL_NOT_FOUND,
        Reason.NIXL_MISMATCH,
        Reason.NIXL_CANCELLED,
        Reason.NIXL_OTHER,
        Reason.ROOM_CONFLICT,
        Reason.ROUTE_CONFLICT,
        Reason.REQUEST_INVALID,
    }
)


def abort_of_decode(reason: Reason | None) -> Reason:
    """What a room ends with on prefill that decode gave up; None where decode does not say why."""
    return Reason.DECODE_ABORT if reason is None else here(Role.DECODE, reason)


def here(told_by: Role, reason: Reason) -> Reason:
    """What a room ends with on this side when ``told_by``, the other role, ended it there with ``reason``."""
    if reason in SHARED:
        return reason
    return ABORTED_BY[told_by] if reason.outcome is Outcome.ABORTED else Reason.PEER_FAILED
