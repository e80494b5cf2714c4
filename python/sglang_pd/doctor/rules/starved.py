"""Requests that reached one side only: each waits there for a peer that never heard of it."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.followup import path_of
from sglang_pd.doctor.seen import Room
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted, seconds

RULE = "starved"
# Both sides get a request within milliseconds; so long after, it did not come.
ALONE_S = 2.0
RECENT_S = 120.0
FIRST = {"prefill": frozenset({"bootstrapping"}), "decode": frozenset({"resolving", "bootstrapping", "waiting"})}
REASONS = {
    "prefill": frozenset({"metadata_timeout"}),
    "decode": frozenset({"dp_rank_unresolved", "prefill_never_sent"}),
}


def look(case: Case) -> Iterator[Finding]:
    for view in case.servers:
        others = case.others(view)
        if not others or not all(one.keeps_accounts and one.all_live_listed for one in others):
            continue
        alone = [room for room in view.live if room.phase in FIRST[view.role or ""] and _alone(case, others, room)]
        alone = [room for room in alone if room.seconds > ALONE_S]
        failed = [room for room in view.failed(REASONS[view.role or ""], RECENT_S) if _alone(case, others, room)]
        if alone or failed:
            yield _finding(case, view, others, alone, failed)


def _alone(case: Case, others: list[View], room: Room) -> bool:
    """Whether the other side is known not to have had it: it forgets rooms that ended, the oldest first."""
    pair = case.pairs[room.room]
    known = pair.prefill is not None and pair.decode is not None
    return not known and all(one.body(path_of(room.room)) is not None or _remembers_all(one) for one in others)


def _remembers_all(view: View) -> bool:
    ended = sum(view.ended(outcome) or 0 for outcome in ("success", "failed", "aborted"))
    return ended <= len([room for room in view.rooms if not room.live])


def _finding(case: Case, view: View, others: list[View], alone: list[Room], failed: list[Room]) -> Finding:
    side = "decode" if view.role == "prefill" else "prefill"
    rooms, total = case.refs([*alone, *failed])
    evidence = []
    if alone:
        oldest = max(room.seconds for room in alone)
        evidence.append(
            f"{view.name} has {counted(len(alone), 'live room')} that no {side} knows, up to {seconds(oldest)} old"
        )
    if failed:
        evidence.append(
            f"{counted(len(failed), 'room')} failed there lately ({failed[0].reason}), unknown to every {side}"
        )
    idle = [one for one in others if not one.live]
    evidence += [
        f"{one.name} answers, is {'not ready' if one.ready_reasons else 'ready'}, and has no live room" for one in idle
    ]
    against = [f"{one.name} has {counted(len(one.live), 'live room')} of its own" for one in others if one.live]
    last = max(room.started_at for room in [*alone, *failed])
    young = [one for one in others if (one.started_at or 0.0) > last]
    against += [f"{one.name} started after them: the one before it may have had them" for one in young]
    unseen = {str(one.get("url")) for one in case.workers if one.get("worker_type") == side}
    unseen -= {str(one.server.url) for one in others}
    against += [f"the gateway knows a {side} that was not looked at: {', '.join(sorted(unseen))}"] if unseen else []
    against += ["no gateway was looked at, so there may be another " + side] if not case.gateways else []
    where = others[0].name if len(others) == 1 else f"{side}s"
    return Finding(
        RULE,
        Severity.FAULT if alone else Severity.WARNING,
        Support.POSSIBLE if unseen else Support.LIKELY,
        f"gateway → {where}",
        f"{counted(total, 'request')} reached {view.name}, and no {side}",
        tuple(evidence),
        tuple(against),
        (
            f"see whether whoever sends requests gives each to a {side} too, with the same bootstrap room and host",
            f"ask the gateway (GET /workers) whether it holds its {side}s for healthy, and read its log",
        ),
        min((room.started_at for room in alone or failed), default=None),
        rooms,
        total,
    )
