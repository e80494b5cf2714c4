"""Ranks of one server that are out of step: some wait in a collective, one does not come."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import Process
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.rules.scheduler import LOOP_S, involved
from sglang_pd.doctor.seen import Rank
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import seconds

RULE = "collective"
# Others wait for one that is seen to be missing; with none missing, only long silence tells.
LATE_S = 3.0
# A collective on a GPU spins at full load; one on a CPU sleeps, or spins on a core.
SPINS_GPU, SPINS_CORES = 90.0, 0.8
_IN_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|broadcast|barrier|reduce_scatter|all_to_all|recv_requests|broadcast_pyobj|wait_for_work",
    re.IGNORECASE,
)


def look(case: Case) -> Iterator[Finding]:
    for view in case.servers:
        found = _missing(case, view) or _spinning(case, view)
        if found is not None:
            yield found


def _missing(case: Case, view: View) -> Finding | None:
    """One rank is stopped, silent or gone, and another waits."""
    out = [(rank, why) for rank in view.ranks if (why := _why_missing(view, rank))]
    waiting = [
        rank
        for rank in view.ranks
        if rank.loop_age is not None and rank.loop_age > LATE_S and rank not in [one for one, _ in out]
    ]
    if len(view.ranks) < 2 or not out or not waiting:
        return None
    evidence = [f"rank {rank.name}: {why}" for rank, why in out]
    evidence += [
        f"rank {one.name} answers, and its loop came round {seconds(one.loop_age or 0)} ago" for one in waiting
    ]
    evidence += _busy(case, view, {one.pid for one in waiting})
    moving = [one for one in view.ranks if one.loop_age is not None and one.loop_age <= LATE_S]
    rank = out[0][0]
    halted = (process := view.process(rank.pid)) is not None and process.state in "Tt"
    return _finding(
        case,
        view,
        Support.SURE,
        f"rank {rank.name}",
        f"rank {rank.name} of {view.name} does not take part; {len(waiting)} wait for it",
        evidence,
        [f"rank {one.name} goes on" for one in moving],
        f"kill -CONT {rank.pid}, if nobody debugs it; else restart {view.name} alone" if halted else _restart(view),
    )


def _spinning(case: Case, view: View) -> Finding | None:
    """All ranks are there, none comes round, and the GPUs or cores are busy."""
    old = [rank for rank in view.ranks if rank.loop_age is not None and rank.loop_age > LOOP_S]
    if len(view.ranks) < 2 or not old:
        return None
    busy = _busy(case, view, {one.pid for one in old})
    if not busy:
        return None
    evidence = [f"rank {one.name}: its loop came round {seconds(one.loop_age or 0.0)} ago" for one in old]
    last = view.last_batch_at
    evidence += [f"the last batch was logged {seconds(case.at - last)} ago"] if last is not None else []
    return _finding(
        case,
        view,
        Support.LIKELY,
        "a collective of its ranks",
        f"the ranks of {view.name} are busy, and no batch comes to an end",
        [*busy, *evidence],
        [f"rank {one.name} comes round" for one in view.ranks if one not in old],
        _restart(view),
    )


def _why_missing(view: View, rank: Rank) -> str | None:
    process = view.process(rank.pid)
    if process is not None and process.state in "Tt":
        return f"process {process.pid} is in state {process.state}"
    return rank.problem


def _busy(case: Case, view: View, pids: set[int]) -> list[str]:
    """What shows that these wait in a collective: GPUs at full load, cores that spin, or where their stacks are."""
    found = []
    gpus = [one for one in case.gpus_of(view) if (one.utilisation or 0.0) >= SPINS_GPU]
    if gpus:
        power = ", ".join(f"{one.power_watts:.0f} W" for one in gpus if one.power_watts is not None)
        found.append(f"GPUs {', '.join(str(one.index) for one in gpus)} are at full load ({power}): a collective spins")
    processes = [one for one in view.schedulers if one.pid in pids]
    found += [f"scheduler {one.pid} uses {one.cores:.1f} cores" for one in processes if one.cores >= SPINS_CORES]
    found += [f"scheduler {one.pid} is in {name}" for one in processes if (name := _collective(one))]
    return found


def _collective(process: Process) -> str | None:
    for line in (process.stack or "").splitlines():
        if (match := _IN_COLLECTIVE.search(line)) is not None:
            return match[0]
    return None


def _restart(view: View) -> str:
    return f"keep the stacks of all ranks (--stacks), then restart {view.name} alone"


def _finding(
    case: Case,
    view: View,
    support: Support,
    where: str,
    headline: str,
    evidence: list[str],
    against: list[str],
    todo: str,
) -> Finding:
    rooms, total = involved(case, view)
    started = [room.since for room in view.live]
    return Finding(
        RULE,
        Severity.FAULT,
        support,
        f"{view.name}: {where}",
        headline,
        tuple(evidence),
        tuple(against),
        (todo,),
        min(started, default=None),
        rooms,
        total,
    )
