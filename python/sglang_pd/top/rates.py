"""How fast: what two readings of a server, one after the other, come to; pure."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from sglang_pd.top.reading import Reading


@dataclass(frozen=True)
class Rates:
    """Per second, between two readings: rooms that started, succeeded, failed and were aborted, and bytes of KV."""

    started: float
    succeeded: float
    failed: float
    aborted: float
    bytes: float


def rates(before: Reading | None, now: Reading) -> Rates | None:
    """None where there is nothing to compare: another process answered before, or none."""
    if before is None or not (before.accounts and now.accounts) or before.processes != now.processes:
        return None
    seconds = now.at - before.at
    if seconds <= 0:
        return None
    grown = zip(astuple(now.totals), astuple(before.totals), strict=True)
    return Rates(*((new - old) / seconds for new, old in grown))


def new_failures(before: Reading | None, now: Reading) -> dict[str, int]:
    """By reason, those since the reading before; empty where there is none of the same process."""
    if before is None or before.processes != now.processes:
        return {}
    new = {reason: count - before.failed_by_reason.get(reason, 0) for reason, count in now.failed_by_reason.items()}
    return {reason: count for reason, count in new.items() if count > 0}
