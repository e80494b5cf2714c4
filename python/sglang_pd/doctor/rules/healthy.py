"""Nothing wrong was found: either all is seen to be well, or too little was seen."""

from __future__ import annotations

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.paths import INFO, READY
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted, seconds

# A live room that has been in its phase for longer is not "well", even where no rule calls it a fault.
YOUNG_S = 15.0


def look(case: Case) -> Finding:
    """The finding where no rule found a fault: ``healthy``, or ``not_enough_evidence``."""
    lacking = lacks(case)
    evidence = tuple(one for view in case.servers for one in _well(view))
    if lacking:
        return Finding(
            "not_enough_evidence",
            Severity.UNKNOWN,
            Support.SURE,
            "not known",
            "no fault was seen, but too little was seen to call it healthy",
            evidence,
            tuple(lacking),
            ("give every prefill and decode (--prefill URL --decode URL), and an --api-key-file where one is needed",
             "run it again while requests are being sent"),
        )  # fmt: skip
    finished = sum(one.finished or 0 for one in case.decodes)
    live = sum(len(one.live) for one in case.decodes)
    work = f"{counted(finished, 'room')} handed over while watching, {live} live" if finished or live else "idle"
    return Finding(
        "healthy",
        Severity.HEALTHY,
        Support.SURE if all(one.keeps_accounts for one in case.servers) else Support.LIKELY,
        "none",
        work,
        evidence,
        tuple(case.missing),
    )


def lacks(case: Case) -> list[str]:
    """What keeps us from calling it healthy; empty where nothing does."""
    found = [f"no {role} server was looked at" for role, views in (("prefill", case.prefills), ("decode", case.decodes))
             if not views]  # fmt: skip
    for view in case.servers:
        info = view.server.replies.get(INFO)
        if not view.asked:
            found.append(f"{view.name} was not asked in time")
            continue
        if view.wants_key and not view.keeps_accounts:
            found.append(f"{view.name} wants an API key")
        elif not view.keeps_accounts and not (info is not None and info.ok):
            found.append(f"{view.name} did not show that its scheduler works")
        elif not view.keeps_accounts and view.load("num_running_reqs") is None:
            found.append(f"{view.name} does not tell its load")
        found += [f"{view.name} is not ready: {one}" for one in view.ready_reasons]
        old = [room for room in view.live if room.phase_seconds > YOUNG_S]
        if old:
            oldest = max(old, key=lambda room: room.phase_seconds)
            found.append(f"{view.name}: room {oldest.room} has been {oldest.phase} for {seconds(oldest.phase_seconds)}")
    return found


def _well(view: View) -> list[str]:
    ready = view.server.replies.get(READY)
    said = []
    if ready is not None and ready.ok:
        said.append("ready")
    if view.keeps_accounts:
        said.append(f"{view.finished or 0} rooms ended in {view.server.window_seconds:.1f} s, {len(view.live)} live")
        oldest = max((room.phase_seconds for room in view.live), default=None)
        said += [f"the oldest {seconds(oldest)} in its phase"] if oldest is not None else []
        failed = sum(view.failed_by_reason.values())
        said += [f"{counted(failed, 'failed room')} since it started"] if failed else []
    else:
        running = view.load("num_running_reqs")
        said += [f"{running:.0f} requests running"] if running is not None else []
    return [f"{view.name}: {', '.join(said)}"] if said else []
