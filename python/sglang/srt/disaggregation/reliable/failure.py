"""A failure's text together with its reason, so that nobody has to guess the reason from the text; pure.

Upstream hands a failure on as a text: ``record_failure``, ``failure_records``, ``KVTransferError.failure_reason``. A
:class:`Failure` is such a text, and keeps its reason on that way.
"""

from __future__ import annotations

from sglang.srt.disaggregation.reliable.reasons import Reason


class Failure(str):
    """Text for whoever reads it, with the ``reason`` of the closed list that it stands for."""

    reason: Reason

    def __new__(cls, text: str, reason: Reason) -> Failure:
        self = super().__new__(cls, text)
        self.reason = reason
        return self

    def __getnewargs__(self) -> tuple[str, Reason]:  # type: ignore[override]
        """For pickle: a failure may be handed to another process."""
        return str(self), self.reason


def failure(reason: Reason, detail: str = "") -> Failure:
    """``<reason>: <detail>``; without a detail, the reason's own sentence."""
    return Failure(f"{reason}: {detail or reason.sentence}", reason)
