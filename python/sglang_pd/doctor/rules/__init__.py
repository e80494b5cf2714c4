"""What the doctor knows: each rule looks at a case for one kind of fault, and each is tested alone.

A rule is a name, a sentence and a pure function from a :class:`Case` to findings; none asks what another found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support, ordered
from sglang_pd.doctor.rules import (
    collective,
    failing,
    gateway,
    healthy,
    layout,
    pool,
    reach,
    registration,
    scheduler,
    skew,
    stale,
    stalled,
    starved,
    watchdog,
)


@dataclass(frozen=True)
class Rule:
    """``fault``: what it is about, in a sentence."""

    name: str
    fault: str
    look: Callable[[Case], Iterable[Finding]]


FAILING = "failing"

# Of findings that are equally severe and well supported, those of the first rule come first: causes before effects.
RULES = (
    Rule("dead_scheduler", "A scheduler process is gone, and its server's HTTP port is still there.", scheduler.dead),
    Rule(
        "collective",
        "The ranks of a server are out of step: one does not take part in what all must do.",
        collective.look,
    ),
    Rule("transfer_stalled", "Rooms are pinned between a prefill and a decode, and nothing moves.", stalled.look),
    Rule("stopped_scheduler", "A scheduler lives, but its loop does not come round.", scheduler.stopped),
    Rule("control_thread", "A thread that carries the KV path has died.", scheduler.threads),
    Rule("unreachable", "A target does not answer.", reach.look),
    Rule("stale_peer", "One side still holds the state of a process that is gone.", stale.look),
    Rule("layout_mismatch", "Prefill and decode are configured differently.", layout.look),
    Rule("registration", "A decode cannot find, or register with, a prefill.", registration.look),
    Rule("pool_exhausted", "A decode has no free KV pages.", pool.look),
    Rule("starved", "One side never hears of requests that the other waits with.", starved.look),
    Rule("one_bad_peer", "Requests fail with one of several peers.", failing.one_bad_peer),
    Rule("watchdog", "A server's own watchdog sees requests that do not move.", watchdog.look),
    Rule("gateway", "The gateway does not send requests to a server that is there.", gateway.look),
    Rule(FAILING, "Requests fail, for reasons that no other rule explains.", failing.look),
    Rule("clock_skew", "The clocks of the machines differ.", skew.look),
)


def judge(case: Case) -> list[Finding]:
    """All findings, the one to begin with first; there is always one."""
    found = without_explained([one for rule in RULES for one in looked(rule, case)])
    if not any(one.severity >= Severity.WARNING for one in found):
        found.append(healthy.look(case))
        # Where all is well, that is the finding; notes follow.
        found.sort(key=lambda one: one.severity is Severity.NOTE)
        return found
    return ordered(found)


def without_explained(findings: list[Finding]) -> list[Finding]:
    """Without lists of failures all of which another finding explains."""
    explained = {
        room.room for one in findings if one.rule != FAILING and one.severity > Severity.NOTE for room in one.rooms
    }
    return [
        one
        for one in findings
        if one.rule != FAILING or one.rooms_total > len(one.rooms) or not {room.room for room in one.rooms} <= explained
    ]


def looked(rule: Rule, case: Case) -> list[Finding]:
    """What the rule found. Evidence that it cannot read, such as answers of something that is no server of ours, is a
    finding too, and keeps no other rule from looking."""
    try:
        # The one that more requests wait for first.
        return sorted(rule.look(case), key=lambda one: -one.rooms_total)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return [
            Finding(
                rule.name,
                Severity.UNKNOWN,
                Support.POSSIBLE,
                "not known",
                f"the rule {rule.name!r} could not read the evidence: {type(error).__name__}: {error}",
                todo=("keep a bundle (--bundle) and report it; the other findings stand",),
            )
        ]
