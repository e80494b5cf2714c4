"""Clocks that differ: nothing breaks by it, but log lines and times of two machines cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import seconds

RULE = "clock_skew"
# The ``Date`` of an answer is right to a second, and a busy server may take one to give it.
FAR_S = 3.0


def look(case: Case) -> Iterator[Finding]:
    known = [(view, found) for view in case.views if (found := skew_of(view)) is not None]
    far = [(view, skew) for view, skew in known if abs(skew) > FAR_S]
    if not far:
        return
    everyone = len(far) == len(known) and len(known) > 1 and max(s for _, s in far) - min(s for _, s in far) < FAR_S
    if everyone:
        skew = far[0][1]
        yield _finding(
            f"the clock of {case.snapshot.host}, where the doctor ran,",
            "the doctor's machine ↔ all servers",
            -skew,
            [f"all {len(known)} targets agree with each other"],
        )
        return
    for view, skew in far:
        rest = [f"{one.name} is {seconds(abs(other))} off" for one, other in known if one is not view]
        yield _finding(f"the clock of {view.name}", f"{view.name} ↔ the other machines", skew, rest)


def skew_of(view: View) -> float | None:
    """Its clock minus the doctor's; of all answers the one nearest to 0, since a late one looks like a slow clock."""
    replies = [*view.server.replies.values(), *view.server.later.values()]
    found = [one.skew for one in replies if one.skew is not None]
    return min(found, key=abs, default=None)


def _finding(whose: str, hop: str, skew: float, rest: list[str]) -> Finding:
    return Finding(
        RULE,
        Severity.WARNING,
        Support.SURE,
        hop,
        f"{whose} is {seconds(abs(skew))} {'ahead' if skew > 0 else 'behind'}",
        ("by the Date of its answers", *rest) if "where the doctor ran" not in whose else tuple(rest),
        ("transfers do not depend on it: deadlines are counted by monotonic clocks",),
        ("set it (chronyc makestep, timedatectl); until then compare no times across machines",),
    )
