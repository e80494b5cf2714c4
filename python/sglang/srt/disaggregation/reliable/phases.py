"""What a room goes through on each side of a transfer, in order; pure."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Phase(StrEnum):
    """Base of the two roles' phases. They compare as text, so a phase read back from a log equals the member."""


class PrefillPhase(Phase):
    """A room on prefill, from the request's arrival until decode has every page.

    ``bootstrapping``: created; decode's metadata (where to write) has not come. ``waiting``: metadata known; queued or
    computing, nothing posted to NIXL. ``transferring``: the first write was posted; later chunks may still be computed.
    """

    BOOTSTRAPPING = "bootstrapping"
    WAITING = "waiting"
    TRANSFERRING = "transferring"


class DecodePhase(Phase):
    """A room on decode, from the request's arrival until the scheduler has taken over what was transferred.

    ``resolving``: which prefill rank has the request is not known (layout from the bootstrap server, dp rank).
    ``bootstrapping``: the rank is known; its address is fetched and our buffers are registered with it.
    ``allocating``: queued for KV pages. ``waiting``: metadata sent, no sign of data. ``transferring``: prefill said, or
    data showed, that it writes. ``finishing``: prefill reported success, the auxiliary write (first token, room number)
    has not landed. ``verifying``: taken over, its checksum is still to be compared; only with
    ``--disaggregation-enable-kv-checksum``.
    """

    RESOLVING = "resolving"
    BOOTSTRAPPING = "bootstrapping"
    ALLOCATING = "allocating"
    WAITING = "waiting"
    TRANSFERRING = "transferring"
    FINISHING = "finishing"
    VERIFYING = "verifying"


PHASES: dict[Role, tuple[Phase, ...]] = {Role.PREFILL: tuple(PrefillPhase), Role.DECODE: tuple(DecodePhase)}
POSITION: dict[Role, dict[Phase, int]] = {
    role: {phase: position for position, phase in enumerate(phases)} for role, phases in PHASES.items()
}
