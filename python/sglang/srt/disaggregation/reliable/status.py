"""What a scheduler rank says of itself on ``/pd/status``, from readings; pure. ``docs/status.md`` tells the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang.srt.disaggregation.reliable.control import ThreadState
from sglang.srt.disaggregation.reliable.counts import Counts
from sglang.srt.disaggregation.reliable.quarantine import QuarantineCounts
from sglang.srt.disaggregation.reliable.reasons import Outcome
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang_pd.status import schema


@dataclass(frozen=True)
class Moment:
    """The time of an answer, by both clocks, in seconds: since the epoch, and monotonic as in a ledger."""

    epoch: float
    monotonic: float

    def of(self, at: float) -> float:
        """The monotonic time ``at`` as seconds since the epoch, as if the clock had never been set."""
        return round(self.epoch - self.monotonic + at, 3)


@dataclass(frozen=True)
class Speaker:
    """A scheduler rank, as far as it does not change.

    ``rank``: unique in its server, such as ``tp0``. ``started_at``: of its process, seconds since the epoch.
    ``incarnation``: which life of it this is, as its peers call it; None with upstream's classes.
    ``classes``: that of its KV manager. ``speaks``: whether it counts and logs for the tensor-parallel ranks of its
    server; None with upstream's classes. ``agent``: NIXL's name of it, new with each process. ``address``: ``ip:port``
    that it listens on for control messages. ``coordinates``: its place among the ranks; None where not known.
    ``settings``: flags and environment, without secrets. ``transport``: what carries the KV; None where not known.
    """

    role: str
    rank: str
    pid: int
    started_at: float
    incarnation: str | None
    versions: Mapping[str, str | None]
    environment: Mapping[str, str]
    classes: str
    speaks: bool | None
    agent: str | None
    address: str | None
    coordinates: Mapping[str, int | None]
    settings: Mapping[str, Any]
    transport: Mapping[str, Any] | None

    def head(self, name: str, now: Moment) -> dict[str, Any]:
        """What every answer begins with."""
        head = {"role": self.role, "rank": self.rank, "pid": self.pid, "at": round(now.epoch, 3)}
        return {"schema": schema(name), **head}


@dataclass(frozen=True)
class Numbers:
    """What the manager counts. ``messages``: control messages by kind and result. ``lanes``: prefill's, none on decode.
    ``stalls``: what the watchdog says."""

    counts: Counts
    messages: Mapping[tuple[str, str], int]
    reconnects: Mapping[str, int]
    held: QuarantineCounts
    lanes: Sequence[Lane]
    stalls: Mapping[str, Any]


# What nobody counts with upstream's classes.
COUNTED = ("rooms", "control_messages", "reconnects", "quarantine", "lanes", "stalls")


def status(
    speaker: Speaker,
    now: Moment,
    age_s: float,
    threads: Mapping[str, ThreadState],
    loop_age_s: float | None,
    numbers: Numbers | None,
    scheduler: Mapping[str, Any] | None = None,
    overlap: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """``age_s``: of the process. ``loop_age_s``: since the scheduler's loop came round, None where it never did.
    ``numbers``: None with upstream's classes, which keep none. ``scheduler``: its batches and queues, None before its
    first round. ``overlap``: of our DeepSeek-V4 attention, None where that is not loaded."""
    known = None if numbers is None else _numbers(numbers)
    return {
        **speaker.head("status", now),
        "started_at": round(speaker.started_at, 3),
        "incarnation": speaker.incarnation,
        "age_seconds": round(age_s, 3),
        "loop_age_seconds": None if loop_age_s is None else round(loop_age_s, 3),
        "scheduler": None if scheduler is None else dict(scheduler),
        "versions": dict(speaker.versions),
        "environment": dict(speaker.environment),
        "settings": dict(speaker.settings),
        "transport": None if speaker.transport is None else dict(speaker.transport),
        "overlap": None if overlap is None else dict(overlap),
        "classes": speaker.classes,
        "speaks": speaker.speaks,
        "agent": speaker.agent,
        "address": speaker.address,
        "coordinates": dict(speaker.coordinates),
        "threads": {name: asdict(state) for name, state in threads.items()},
        **(known or dict.fromkeys(COUNTED)),
    }


def _numbers(numbers: Numbers) -> dict[str, Any]:
    messages: dict[str, dict[str, int]] = {}
    for (kind, result), number in sorted(numbers.messages.items()):
        messages.setdefault(kind, {})[result] = number
    return {
        "rooms": rooms(numbers.counts),
        "control_messages": messages,
        "reconnects": dict(numbers.reconnects),
        "quarantine": {
            "rooms": numbers.held.rooms,
            "pages": numbers.held.pages,
            "oldest_age_seconds": round(numbers.held.oldest_seconds, 3),
            "released": {str(release): number for release, number in numbers.held.released.items()},
        },
        "lanes": [lane.entry() for lane in numbers.lanes],
        "stalls": dict(numbers.stalls),
    }


def rooms(counts: Counts) -> dict[str, Any]:
    """All that started: the live ones by phase, and how many ended, and why."""
    outcomes: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))
    reasons: dict[Outcome, Counter[str]] = {Outcome.FAILED: Counter(), Outcome.ABORTED: Counter()}
    for (outcome, _, reason), number in counts.ended.items():
        outcomes[outcome] += number
        if outcome in reasons:
            reasons[outcome][str(reason)] += number
    return {
        "started": counts.started,
        "ended": {str(outcome): number for outcome, number in outcomes.items()},
        "failed_by_reason": dict(reasons[Outcome.FAILED].most_common()),
        "aborted_by_reason": dict(reasons[Outcome.ABORTED].most_common()),
        "live": {
            str(phase): {"rooms": number, "oldest_age_seconds": round(counts.oldest_seconds[phase], 3)}
            for phase, number in counts.live.items()
        },
        "pages": counts.pages,
        "bytes": counts.bytes,
        "anomalies": {str(anomaly): number for anomaly, number in counts.anomalies.items()},
    }
