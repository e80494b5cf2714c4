"""What the servers' own watchdogs see: requests are there, and nothing moves (``docs/stalls.md`` tells the causes)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.seen import Rank
from sglang_pd.doctor.shapes import field, objects
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import seconds

RULE = "watchdog"
# It is the other side's turn, which tells of its own what it is.
WAITS = "waiting_for_peer"


def look(case: Case) -> Iterator[Finding]:
    for view in case.servers:
        for rank in view.ranks:
            for stall in objects(rank.status.get("stalls"), "open"):
                yield _finding(case, view, rank, stall)


def _finding(case: Case, view: View, rank: Rank, stall: Mapping[str, Any]) -> Finding:
    phase, peer, cause = (str(stall.get(name) or "?") for name in ("phase", "peer", "cause"))
    since = stall.get("since_at")
    rooms = [room for room in view.live if room.phase == phase and (not stall.get("peer") or room.peer == peer)]
    refs, total = case.refs(rooms or (view.live if phase == "loop" else []))
    other = case.server_at(view, peer) if stall.get("peer") else None
    waits = cause == WAITS
    report = field(rank.status, "stalls", "last_report").get("file")
    return Finding(
        RULE,
        Severity.WARNING if waits else Severity.FAULT,
        Support.POSSIBLE if waits else Support.LIKELY,
        f"{view.name} ({phase})" + (f" ↔ {other.name if other else peer}" if stall.get("peer") else ""),
        f"the watchdog of {view.name} sees a stall: {stall.get('text') or cause}",
        (
            f"{cause} in {phase}: {stall.get('rooms', '?')} rooms, for {seconds(float(stall.get('seconds') or 0.0))}",
            *([f"its report, with stacks: {report}"] if report else []),
        ),
        ("it is the other side's turn, and it may only be slow",) if waits else (),
        (
            f"look at {other.name if other else 'its peer'} first"
            if waits
            else f"see {cause} in docs/stalls.md; if it does not end by itself, restart {view.name} alone",
        ),
        since if isinstance(since, int | float) else None,
        refs,
        total,
    )
