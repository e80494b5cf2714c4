"""A target that does not answer: it is gone, it hangs, or the way to it is closed."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.view import View

RULE = "unreachable"


def look(case: Case) -> Iterator[Finding]:
    for view in case.views:
        if view.server.url is None:
            yield _without_url(view)
        # Who was not asked did not refuse to answer.
        elif view.asked and not view.answers:
            yield _silent(case, view)


def _without_url(view: View) -> Finding:
    unit = view.server.unit or {}
    state = f"{unit.get('ActiveState', '?')} ({unit.get('SubState', '?')}), result {unit.get('Result', '?')}"
    return Finding(
        RULE,
        Severity.FAULT,
        Support.SURE if view.server.expected_pid is None else Support.POSSIBLE,
        f"whoever asks → {view.name}",
        f"{view.name} has no process that serves",
        ((f"systemd: {state}",) if unit else ()) + _last_words(view),
        todo=(f"systemctl status {view.name}; start it again, alone",),
    )


def _silent(case: Case, view: View) -> Finding:
    problems = list(dict.fromkeys(one.problem for one in view.asked if one.problem))
    refused = any("refused" in one for one in problems)
    connected = any("connected" in one for one in problems)
    evidence = [f"{view.server.url}: {problems[0] if problems else 'no answer'}"]
    against: list[str] = []
    support = Support.SURE
    main = view.main
    worker = next((one for one in case.workers if one.get("url") == view.server.url), None)
    if worker is not None:
        line = f"the gateway calls it {'healthy' if worker.get('is_healthy') else 'unhealthy'}"
        (against if worker.get("is_healthy") else evidence).append(line)
    if main is not None and main.state in "Tt":
        headline = f"{view.name} is stopped: nobody answers on its port"
        evidence.append(f"its main process {main.pid} is in state {main.state}: stopped by a signal or a debugger")
        todo = [f"kill -CONT {main.pid}, if nobody debugs it; else restart this server alone"]
    elif main is not None and connected:
        headline = f"{view.name} hangs: its port takes connections, and nobody answers"
        evidence.append(f"its main process {main.pid} lives (state {main.state}, {main.cores:.2f} cores)")
        todo = [f"look at its stacks (py-spy dump --pid {main.pid}) and log, then restart this server alone"]
    elif connected:
        headline = f"{view.name} hangs: its port takes connections, and nobody answers"
        todo = ["look at its process on its own machine with sglang-pd doctor --pid"]
    elif refused and main is None and view.server.expected_pid is not None:
        headline = f"{view.name} is gone: its process {view.server.expected_pid} does not run"
        evidence += _last_words(view)
        todo = ["read the end of its log, then start this server again, alone"]
    elif refused:
        headline = f"{view.name} is not there: nothing listens on its port"
        if main is not None:
            evidence.append(f"its main process {main.pid} lives, {main.age_seconds:.0f} s old: it may be starting")
            support = Support.LIKELY
        todo = ["start it, or mend the URL"]
    else:
        headline = f"{view.name} cannot be reached"
        support = Support.LIKELY
        todo = ["see whether its machine is up and its port is open from here"]
    alive = [one for one in view.schedulers if one.state not in ("Z", "X", "gone")]
    if alive and main is not None:
        against.append(f"its scheduler lives (pid {alive[0].pid}, state {alive[0].state})")
    rooms, total = case.refs(room for one in case.others(view) for room in one.live if case.peer_of(one, room) is view)
    others = "" if view.role == "gateway" else "gateway → "
    return Finding(
        RULE, Severity.FAULT, support, f"{others}{view.name}", headline, tuple(evidence), tuple(against), tuple(todo),
        None, rooms, total,
    )  # fmt: skip


def _last_words(view: View) -> tuple[str, ...]:
    """The last line of its log that tells of a failure."""
    log = view.server.log
    return (f"its log ends with: {log.matched[-1][:200]}",) if log is not None and log.matched else ()
