"""What an error of NIXL's means: the room's reason, and whether the connection to the peer is to be made anew; pure.

NIXL 1.5.1's errors have no common base; they are told apart by their names.
"""

from __future__ import annotations

from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.reasons import Reason

_REASONS: dict[str, Reason] = {
    "nixlRemoteDisconnectError": Reason.PEER_DISCONNECTED,
    "nixlNotFoundError": Reason.NIXL_NOT_FOUND,
    "nixlInvalidParamError": Reason.NIXL_INVALID,
    "nixlMismatchError": Reason.NIXL_MISMATCH,
    "nixlCancelledError": Reason.NIXL_CANCELLED,
    "nixlBackendError": Reason.NIXL_BACKEND,
}
# What NIXL says of a write itself: it would be refused again. Everything else may be the connection.
_REFUSED = {Reason.NIXL_INVALID, Reason.NIXL_MISMATCH, Reason.INTERNAL_ERROR, Reason.PEER_LOST}


class WriteError(RuntimeError):
    """NIXL reported "ERR" for a write, which says nothing more."""

    reason = Reason.NIXL_BACKEND


def reason_of(error: BaseException) -> Reason:
    """The reason a write that raised ``error`` ends its room with: its own ``reason``, or that of NIXL's error, which
    upstream may have wrapped."""
    own = getattr(error, "reason", None)
    if isinstance(own, Reason):
        return own
    for each in (error, error.__cause__):
        name = type(each).__name__
        if name.startswith("nixl"):
            return _REASONS.get(name, Reason.NIXL_OTHER)
    return Reason.INTERNAL_ERROR


def connection_lost(error: BaseException) -> bool:
    """Whether the connection to the peer is broken, or may be: it has to be made anew before the next write."""
    return reason_of(error) not in _REFUSED


def disconnected(error: BaseException) -> bool:
    """Whether NIXL found the connection closed."""
    return reason_of(error) is Reason.PEER_DISCONNECTED


def failure_of(error: BaseException) -> Failure:
    return failure(reason_of(error), f"{type(error).__name__}: {error}")
