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

    def __str__(self) -> str:
        """Itself: upstream takes the text of an error that was raised with a failure, and the reason is still there."""
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """In another process it is a text."""
        return str, ("".join(self),)


def failure(reason: Reason, detail: str = "") -> Failure:
    """``<reason>: <detail>``; without a detail, the reason's own sentence."""
    return Failure(f"{reason}: {detail or reason.sentence}", reason)
