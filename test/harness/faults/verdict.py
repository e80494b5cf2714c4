"""What came of a cell of the matrix, and what is wrong with that; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.faults.cells import Cell
from harness.faults.fault import Must, Phase, Side
from harness.faults.site import DEADLINES_S
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.report import LoggedRoom

# Beyond the phases' deadlines: how late an end may be, and how late the other side may know, in seconds.
GRACE_S = 1.0
KNOWS_S = 1.0


@dataclass
class End:
    """How one side ended its room. ``known_s``: seconds from the fault; below 0 where it had ended before."""

    side: Side
    room: LoggedRoom
    known_s: float
    at: float
    times: int
    lines: int


@dataclass
class Record:
    """``ends``: of the first request. ``next_s``: what the next request took. ``released``: what let decode give the
    pages of the failed room back, after how many seconds. ``baseline_s``: until everything was given back.
    ``untouched_s``: the other peer's slowest request meanwhile, and its median before. ``reusable``: whether others
    may use the site, since at most something was not given back."""

    cell: Cell
    ends: list[End] = field(default_factory=list)
    next_s: float | None = None
    released: tuple[str, float] | None = None
    baseline_s: float | None = None
    untouched_s: tuple[float, float] | None = None
    problems: list[str] = field(default_factory=list)
    reusable: bool = False


def problems_of(end: End) -> list[str]:
    """What is wrong with one side's end, whatever the fault was."""
    found = []
    room = end.room
    if end.times != 1:
        found.append(f"{end.side} ended {end.times} times")
    expected = int(room.outcome is Outcome.FAILED)
    if end.lines != expected:
        found.append(f"{end.side} logged {end.lines} lines of a room that {room.outcome}, not {expected}")
    if room.reason in (Reason.INTERNAL_ERROR, Reason.OTHER_RANK_FAILED):
        found.append(f"{end.side} ended with {room.reason}, which is not what happened")
    limit = DEADLINES_S[end.side] + GRACE_S
    found += [
        f"{end.side} was {phase} for {seconds:.2f} s, over {limit:g} s"
        for phase, seconds in room.phase_seconds.items()
        if seconds > limit
    ]
    return found


def disagreements(cell: Cell, ends: list[End]) -> list[str]:
    """What is wrong between the two sides, given the cell."""
    found = []
    for end in ends:
        allowed = cell.fault.reasons.get(end.side)
        if end.room.outcome is Outcome.FAILED and allowed is not None and end.room.reason not in allowed:
            found.append(f"{end.side} ended with {end.room.reason}; what happened is {' or '.join(sorted(allowed))}")
    outcomes = {end.side: end.room.outcome for end in ends}
    told = {str(end.side): f"{end.room.outcome} ({end.room.reason})" for end in ends}
    if (
        cell.fault.must is Must.SUCCEED
        and cell.phase is not Phase.ABORTING
        and set(outcomes.values()) != {Outcome.SUCCESS}
    ):
        found.append(f"the request had to succeed: {told}")
    if cell.fault.must is Must.ABORT and Outcome.FAILED in outcomes.values():
        found.append(f"nothing failed, somebody aborted: {told}")
    if cell.fault.must is Must.FAIL and Outcome.SUCCESS in outcomes.values():
        found.append(f"the request must not succeed: {told}")
    if cell.fault.told and len(ends) == 2:
        apart = abs(ends[0].at - ends[1].at)
        if apart > KNOWS_S:
            found.append(f"the sides ended {apart:.2f} s apart")
    return found
