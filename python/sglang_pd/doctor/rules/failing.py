"""Requests that fail: with one of several peers only, or for reasons that no other rule looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from sglang_pd.doctor.case import NAMED, Case
from sglang_pd.doctor.finding import Finding, RoomRef, Severity, Support
from sglang_pd.doctor.rules.layout import differing
from sglang_pd.doctor.seen import Room
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import by_number, counted, seconds

RECENT_S = 600.0
# A peer that is ready, and whose last failure is older, may be well again.
NOW_S = 20.0
# So many failures, and such a part of all, on one peer, and no more than so many on each other one.
ENOUGH, BAD, GOOD = 3, 0.3, 0.1
# Later than the last failure, so many successes say that it is over.
OVER = 3
# Variables that differ from start to start.
OF_EACH_START = ("SGLANG_PD_SERVER_DIR", "SGLANG_RUN_ID", "INVOCATION_ID")


@dataclass
class Record:
    """The rooms of one side with one peer that ended lately."""

    peer: View
    failed: list[Room] = field(default_factory=list)
    succeeded: list[Room] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return len(self.failed) + len(self.succeeded)

    @property
    def share(self) -> float:
        return len(self.failed) / max(1, self.ended)

    @property
    def last_failure(self) -> float:
        return max((room.ended_at or 0.0 for room in self.failed), default=0.0)

    @property
    def over(self) -> bool:
        return sum((room.ended_at or 0.0) > self.last_failure for room in self.succeeded) >= OVER


def records(case: Case, view: View) -> dict[str, Record]:
    """By the peer's name."""
    found = {one.name: Record(one) for one in case.others(view)}
    for room in view.rooms:
        peer = case.peer_of(view, room)
        if room.live or peer is None or (room.ended_at or 0.0) < case.at - RECENT_S:
            continue
        record = found[peer.name]
        if room.outcome in ("failed", "success"):
            (record.failed if room.outcome == "failed" else record.succeeded).append(room)
    return found


def one_bad_peer(case: Case) -> Iterator[Finding]:
    for view in case.servers:
        every = records(case, view)
        for name, record in every.items():
            others = [one for key, one in every.items() if key != name]
            served = [one for one in others if one.succeeded]
            bad = len(record.failed) >= ENOUGH and record.share >= BAD and not record.over
            if not (bad and served and all(one.share <= GOOD for one in others)):
                continue
            reasons = Counter(room.reason or "?" for room in record.failed)
            rooms, total = case.refs(record.failed)
            good = ", ".join(
                f"{one.peer.name} {len(one.succeeded)} of {len(one.succeeded) + len(one.failed)}" for one in served
            )
            now = case.at - record.last_failure < NOW_S or bool(record.peer.ready_reasons) or not record.peer.answers
            yield Finding(
                "one_bad_peer",
                Severity.FAULT if now else Severity.WARNING,
                Support.LIKELY,
                f"{view.name} ↔ {name}" if view.role == "decode" else f"{view.name} → {name}",
                f"requests of {view.name} fail with {name} only",
                (
                    f"with {name} {len(record.failed)} of {record.ended} failed lately: " + by_number(reasons),
                    f"ended well with the others: {good}",
                    *_apart(record.peer, [one.peer for one in served]),
                ),
                (f"with {name} {len(record.succeeded)} ended well too",) if record.succeeded else (),
                (
                    f"take {name} out of the gateway, then look at it: its log, its machine's network, what it was "
                    "started with",
                    f"restart {name} alone",
                ),
                min((room.ended_at or 0.0 for room in record.failed), default=None),
                rooms,
                total,
            )


def _apart(bad: View, good: list[View]) -> list[str]:
    """What the bad one was started with, and no good one was."""
    found = []
    for name in sorted({*bad.environment, *(key for one in good for key in one.environment)}):
        if name in OF_EACH_START:
            continue
        own = bad.environment.get(name, "not set")
        others = sorted({one.environment.get(name, "not set") for one in good})
        if own not in others:
            found.append(f"{name} is {own} on {bad.name}, {' or '.join(others)} on the others")
    found += [text for one in good[:1] for _, text in differing(bad, one)]
    return found[:6]


def look(case: Case) -> Iterator[Finding]:
    """All failures that are remembered, by pair, so that none goes unsaid."""
    for view in case.servers:
        by_peer: dict[str, list[Room]] = {}
        for room in view.failed(within_s=RECENT_S):
            peer = case.peer_of(view, room)
            by_peer.setdefault(peer.name if peer else room.peer or "", []).append(room)
        every = records(case, view)
        for name, rooms in by_peer.items():
            yield _finding(case, view, name, rooms, every.get(name))
        if not view.keeps_accounts:
            yield from _logged(case, view)


def _finding(case: Case, view: View, name: str, rooms: list[Room], record: Record | None) -> Finding:
    last = max(room.ended_at or 0.0 for room in rooms)
    against = []
    over = record.over if record else name != ""
    later = sum((room.ended_at or 0.0) > last for room in record.succeeded) if record else 0
    if later:
        against.append(f"{counted(later, 'room')} with it ended well since")
    if record is not None and (record.peer.started_at or 0.0) > last:
        against.append(f"{name} was started anew since")
        over = True
    if record is None and name:
        against.append(f"no server that was looked at is at {name} now: it may be gone")
    refs, total = case.refs(rooms)
    peer = name or "a peer that is not known"
    return Finding(
        "failing",
        Severity.NOTE if over else Severity.WARNING,
        Support.POSSIBLE,
        f"{view.name} → {peer}" if view.role == "prefill" else f"{peer} → {view.name}",
        f"{counted(total, 'room')} of {view.name} with {peer} failed, the last {_ago(case, last)}",
        (f"reasons: {by_number(Counter(room.reason or '?' for room in rooms))}",),
        tuple(against),
        ("grep 'PD room failed' in its log: each has a line with its request, peer, phase and times",),
        min(room.ended_at or 0.0 for room in rooms),
        refs,
        total,
    )


def _logged(case: Case, view: View) -> Iterator[Finding]:
    """What the log of a server says that keeps no accounts."""
    failed = [one for one in view.log_failures if one.at is not None and one.at > case.at - RECENT_S]
    if not failed:
        return
    times = [one.at for one in failed if one.at is not None]
    refs = tuple(
        RoomRef(one.room, one.rid, **{view.role or "prefill": f"{one.what} failed"}) for one in failed[-NAMED:]
    )
    yield Finding(
        "failing",
        Severity.WARNING,
        Support.POSSIBLE,
        f"{view.name} ↔ its peers",
        f"{counted(len(failed), 'request')} of {view.name} failed by its log, the last {_ago(case, max(times))}",
        tuple(dict.fromkeys(f"{one.what}: {one.why[:160]}" for one in failed[-2:])),
        ("upstream's classes do not say with which peer, nor whether others went well since",),
        ("run it with SGLANG_PD_RELIABLE=1: each failure then has a reason and a peer",),
        min(times),
        refs,
        len(failed),
    )


def _ago(case: Case, at: float) -> str:
    return f"{seconds(max(0.0, case.at - at))} ago"
