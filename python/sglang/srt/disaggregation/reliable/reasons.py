"""Why a room ended: the closed list, what each reason means for the client, and one sentence for operators; pure."""

from __future__ import annotations

from enum import StrEnum

from sglang.srt.disaggregation.reliable.phases import DecodePhase, Phase, PrefillPhase, Role


class Outcome(StrEnum):
    """``aborted``: somebody wanted the end; ``failed``: nobody did. Only the latter is an operator's concern."""

    SUCCESS = "success"
    FAILED = "failed"
    ABORTED = "aborted"


RETRY = 503
"""HTTP status where the same request may succeed elsewhere or later; the gateway retries it by itself."""
NO_RETRY = 500
"""HTTP status where the same request would end the same way."""
CLIENT_FAULT = 400


class Reason(StrEnum):
    """One reason; ``Reason(text)`` finds it by its label, and raises ``ValueError`` for an unknown one.

    ``outcome``: the class it belongs to. ``http_status``: the client's answer, None where there is nobody to answer or
    nothing failed. ``sentence``: for operators.
    """

    outcome: Outcome
    http_status: int | None
    sentence: str

    # Every member states all four; the defaults are for ``Reason(text)``, which never gets here.
    def __new__(
        cls, label: str, outcome: Outcome = Outcome.FAILED, http_status: int | None = None, sentence: str = ""
    ) -> Reason:
        member = str.__new__(cls, label)
        member._value_ = label
        member.outcome = outcome
        member.http_status = http_status
        member.sentence = sentence
        return member

    @property
    def retry_helps(self) -> bool:
        return self.http_status == RETRY

    # fmt: off
    DELIVERED = "delivered", Outcome.SUCCESS, None, "Every page and the auxiliary data arrived."

    # A phase's deadline passed.
    METADATA_TIMEOUT = "metadata_timeout", Outcome.FAILED, RETRY, "Decode's metadata did not reach prefill in time."
    SEND_TIMEOUT = "send_timeout", Outcome.FAILED, RETRY, "Prefill knew where to write, but did not start in time."
    TRANSFER_TIMEOUT = "transfer_timeout", Outcome.FAILED, RETRY, "Writing started, but was not done in time."
    DP_RANK_UNRESOLVED = "dp_rank_unresolved", Outcome.FAILED, RETRY, "Decode did not learn which prefill rank has it."
    REGISTRATION_TIMEOUT = "registration_timeout", Outcome.FAILED, RETRY, "Prefill did not confirm a registration."
    ALLOCATION_TIMEOUT = "allocation_timeout", Outcome.FAILED, RETRY, "Decode had no free KV pages in time."
    PREFILL_NEVER_SENT = "prefill_never_sent", Outcome.FAILED, RETRY, "Decode sent its metadata; no data came in time."
    VERIFICATION_TIMEOUT = "verification_timeout", Outcome.FAILED, RETRY, "All arrived, but was not verified in time."
    AUX_MISSING = "aux_missing", Outcome.FAILED, RETRY, "Prefill reported success; its auxiliary write never landed."

    # The other side.
    BOOTSTRAP_UNREACHABLE = "bootstrap_unreachable", Outcome.FAILED, RETRY, "The bootstrap server did not answer."
    BOOTSTRAP_REJECTED = "bootstrap_rejected", Outcome.FAILED, RETRY, "The bootstrap server does not know the rank."
    REGISTRATION_FAILED = "registration_failed", Outcome.FAILED, RETRY, "The registration was refused or not sent."
    CONTROL_SEND_FAILED = "control_send_failed", Outcome.FAILED, RETRY, "A control message could not be sent."
    PEER_DISCONNECTED = "peer_disconnected", Outcome.FAILED, RETRY, "The NIXL connection broke and did not heal."
    PEER_LOST = "peer_lost", Outcome.FAILED, RETRY, "The peer process is gone or no longer answers its heartbeat."
    PEER_SILENT = "peer_silent", Outcome.FAILED, RETRY, "The peer process does not answer: it stopped, or is cut off."
    PEER_REPLACED = "peer_replaced", Outcome.FAILED, RETRY, "The peer process was replaced by a newer one."
    PEER_FAILED = "peer_failed", Outcome.FAILED, RETRY, "The peer reported that it failed, without saying why."
    PEER_INCOMPATIBLE = "peer_incompatible", Outcome.FAILED, NO_RETRY, "Prefill and decode are configured differently."
    OTHER_RANK_FAILED = "other_rank_failed", Outcome.FAILED, RETRY, "Another tensor-parallel rank failed the request."

    # What was, or should have been, transferred.
    METADATA_INVALID = "metadata_invalid", Outcome.FAILED, RETRY, "Decode's metadata for the room made no sense."
    LENGTH_MISMATCH = "length_mismatch", Outcome.FAILED, NO_RETRY, "Prefill and decode disagree on the number of pages."
    CHECKSUM_MISMATCH = "checksum_mismatch", Outcome.FAILED, RETRY, "The KV that arrived is not the KV that was sent."
    AUX_MISMATCH = "aux_mismatch", Outcome.FAILED, RETRY, "The auxiliary data that arrived is another room's."
    LOCAL_RESTORE_FAILED = "local_restore_failed", Outcome.FAILED, RETRY, "Decode could not restore a cached prefix."

    # NIXL, by the kind of its error.
    NIXL_BACKEND = "nixl_backend", Outcome.FAILED, RETRY, "NIXL's backend failed a write."
    NIXL_INVALID = "nixl_invalid", Outcome.FAILED, NO_RETRY, "NIXL refused a write as invalid."
    NIXL_NOT_FOUND = "nixl_not_found", Outcome.FAILED, RETRY, "NIXL does not know the peer, its memory or the handle."
    NIXL_MISMATCH = "nixl_mismatch", Outcome.FAILED, NO_RETRY, "NIXL found that the two ends of a write do not match."
    NIXL_CANCELLED = "nixl_cancelled", Outcome.FAILED, RETRY, "NIXL cancelled a write."
    NIXL_OTHER = "nixl_other", Outcome.FAILED, RETRY, "NIXL failed with an error of another kind."

    # This side.
    ROOM_CONFLICT = "room_conflict", Outcome.FAILED, RETRY, "The room number is in use by another request."
    ROUTE_CONFLICT = "route_conflict", Outcome.FAILED, NO_RETRY, "The request's dp rank contradicts its room number."
    NO_MEMORY = "no_memory", Outcome.FAILED, RETRY, "No KV pages or buffers could be had for the request."
    INTERNAL_ERROR = "internal_error", Outcome.FAILED, NO_RETRY, "An unexpected error; the log has its traceback."

    # Somebody wanted it to end.
    CLIENT_ABORT = "client_abort", Outcome.ABORTED, None, "The client cancelled the request or went away."
    REQUEST_INVALID = "request_invalid", Outcome.ABORTED, CLIENT_FAULT, "The request cannot be served as it is."
    PREFILL_ABORT = "prefill_abort", Outcome.ABORTED, RETRY, "Prefill aborted the request."
    DECODE_ABORT = "decode_abort", Outcome.ABORTED, RETRY, "Decode aborted the request."
    RETRACTED = "retracted", Outcome.ABORTED, RETRY, "The scheduler took the request back to free its memory."
    SHUTDOWN = "shutdown", Outcome.ABORTED, RETRY, "The process was told to stop."
    # fmt: on


DEADLINE_REASON: dict[Role, dict[Phase, Reason]] = {
    Role.PREFILL: {
        PrefillPhase.BOOTSTRAPPING: Reason.METADATA_TIMEOUT,
        PrefillPhase.WAITING: Reason.SEND_TIMEOUT,
        PrefillPhase.TRANSFERRING: Reason.TRANSFER_TIMEOUT,
    },
    Role.DECODE: {
        DecodePhase.RESOLVING: Reason.DP_RANK_UNRESOLVED,
        DecodePhase.BOOTSTRAPPING: Reason.REGISTRATION_TIMEOUT,
        DecodePhase.ALLOCATING: Reason.ALLOCATION_TIMEOUT,
        DecodePhase.WAITING: Reason.PREFILL_NEVER_SENT,
        DecodePhase.TRANSFERRING: Reason.TRANSFER_TIMEOUT,
        DecodePhase.FINISHING: Reason.AUX_MISSING,
        DecodePhase.VERIFYING: Reason.VERIFICATION_TIMEOUT,
    },
}
"""Why a room ends whose phase lasted longer than its deadline."""
