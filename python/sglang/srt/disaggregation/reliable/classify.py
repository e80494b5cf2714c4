"""Which reason of the closed list upstream's free text stands for; pure.

Upstream records a failure as a sentence. Each pattern here is one that 0.5.23 writes (``common/conn.py`` and
``nixl/conn.py``); what none of them fits is ``internal_error``, which an operator will see and report.
"""

from __future__ import annotations

import re

from sglang.srt.disaggregation.reliable.phases import Phase
from sglang.srt.disaggregation.reliable.reasons import DEADLINE_REASON, Reason, Role

_PATTERNS: tuple[tuple[str, Reason], ...] = (
    (r"^Aborted by AbortReq", Reason.CLIENT_ABORT),
    (r"^Aborted by decode-side abort", Reason.DECODE_ABORT),
    (r"[Dd]uplicate .*bootstrap room|Duplicate or cancelled", Reason.ROOM_CONFLICT),
    (r"^follow_bootstrap_room conflict", Reason.ROUTE_CONFLICT),
    (r"^Lost connection with prefill|healthy before, but now it is down", Reason.PEER_LOST),
    (r"^Could not fetch bootstrap info", Reason.BOOTSTRAP_REJECTED),
    (r"^Could not fetch prefill parallel info", Reason.BOOTSTRAP_UNREACHABLE),
    (r"^(send_metadata|register|\w+) to prefill .* failed$", Reason.CONTROL_SEND_FAILED),
    (r"policy mismatch|requires peer attention", Reason.PEER_INCOMPATIBLE),
    (r"NIXL_ERR_REMOTE_DISCONNECT|[Rr]emote ?[Dd]isconnect", Reason.PEER_DISCONNECTED),
    (r"NIXL_ERR_NOT_FOUND|nixlNotFoundError", Reason.NIXL_NOT_FOUND),
    (r"NIXL_ERR_INVALID_PARAM|nixlInvalidParamError", Reason.NIXL_INVALID),
    (r"NIXL_ERR_MISMATCH|nixlMismatchError", Reason.NIXL_MISMATCH),
    (r"NIXL_ERR_CANCELED|nixlCanceledError", Reason.NIXL_CANCELLED),
    (r"NIXL_ERR_BACKEND|nixlBackendError|encountered ERR", Reason.NIXL_BACKEND),
    (r"NIXL_ERR_|failed to create .*transfer|Failed to create .*transfer", Reason.NIXL_OTHER),
    (r"from another rank$", Reason.OTHER_RANK_FAILED),
    (r"prefill .*failed|^Failed at prefill", Reason.PEER_FAILED),
)
_COMPILED = tuple((re.compile(pattern), reason) for pattern, reason in _PATTERNS)
_TIMED_OUT = re.compile(r"[Tt]imed out")


def classify(role: Role, phase: Phase, text: str | None) -> Reason:
    """The reason for a room of ``role`` that failed in ``phase`` with upstream's ``text``.

    None is no text at all, which upstream leaves where another rank failed the room.
    """
    if not text:
        return Reason.OTHER_RANK_FAILED
    if _TIMED_OUT.search(text):
        return DEADLINE_REASON[role][phase]
    return next((reason for pattern, reason in _COMPILED if pattern.search(text)), Reason.INTERNAL_ERROR)
