"""Scheduler processes that are gone, stand still, or have lost a thread, while the server's own port may look well."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import Process
from sglang_pd.doctor.finding import Finding, RoomRef, Severity, Support
from sglang_pd.doctor.logged import time_of
from sglang_pd.doctor.paths import INFO
from sglang_pd.doctor.seen import Rank, Room
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import seconds

# A loop that comes round more seldom is stuck; an idle one does every second, and ``/pd/ready`` allows as much.
LOOP_S = 20.0
# Until then a server may not have started its schedulers.
STARTING_S = 60.0
RECENT_S = 60.0
# Logs tell whole seconds.
LOG_S = 1.0
_CRASH = re.compile(r"Subprocess (?P<name>scheduler\S*) \(pid=(?P<pid>\d+)\) crashed with exit code (?P<code>-?\d+)")
PEER_REASONS = frozenset(
    {"peer_lost", "peer_silent", "peer_replaced", "peer_disconnected", "peer_failed", "bootstrap_unreachable"}
)


def dead(case: Case) -> Iterator[Finding]:
    """Nobody computes there any more."""
    for view in case.servers:
        evidence, since = _deaths(view)
        if not evidence:
            continue
        against = [f"scheduler {one.pid} lives (state {one.state})" for one in view.schedulers if runs(one)]
        front = _front(view)
        rooms, total = involved(case, view, since)
        yield Finding(
            "dead_scheduler",
            Severity.FAULT,
            Support.SURE,
            f"{view.name}: HTTP → scheduler",
            f"the scheduler of {view.name} is dead" + (", its port is still there" if front else ""),
            (*evidence, *front),
            tuple(against),
            (
                f"restart {view.name}, and nothing else; its log has the cause of death",
                "an exit code of -9 without a line of its own is the kernel's (dmesg: out of memory) or an operator's",
            ),
            since,
            rooms,
            total,
        )


def _deaths(view: View) -> tuple[list[str], float | None]:
    evidence = [f"rank {one.name}: {one.problem}" for one in view.ranks if one.gone]
    zombies = [one for one in view.server.processes or [] if one.state == "Z" and "schedul" in one.title]
    evidence += [f"scheduler {one.pid} is a zombie: it has ended, and its parent did not ask" for one in zombies]
    since = None
    main = view.main
    missing = main is not None and not any(map(runs, view.schedulers))
    if missing and (evidence or (main is not None and main.age_seconds > STARTING_S and _is_launcher(main))):
        assert main is not None
        evidence.append(f"its main process {main.pid} lives, and has no scheduler beside it")
    living = {one.pid for one in view.schedulers if runs(one)}
    for line in view.log_lines:
        match = _CRASH.search(line)
        # A crash of an earlier life of this server is no news.
        if match and not living and (missing or evidence or not view.answers):
            since = time_of(line, view.utc_offset) or since
            evidence.append(f"its log: {match['name']} (pid {match['pid']}) crashed with exit code {match['code']}")
    return list(dict.fromkeys(evidence)), since


def _front(view: View) -> list[str]:
    if view.answers:
        replies = [view.server.replies.get(path) for path in ("/ready", "/health")]
        said = [f"{one.path} {one.status}" for one in replies if one is not None and one.status is not None]
        return [f"its port still answers ({', '.join(said)})"] if said else ["its port still answers"]
    if any(one.problem and one.problem.startswith("connected") for one in view.asked):
        return ["its port still takes connections, and does not answer"]
    return []


def stopped(case: Case) -> Iterator[Finding]:
    """It is there, and does nothing."""
    for view in case.servers:
        for rank, process, evidence, support in _standing(view):
            pid = process.pid if process else rank.pid if rank else 0
            halted = process is not None and process.state in "Tt"
            against = []
            if process is not None and process.cores > 0.5:
                against.append(f"it uses {process.cores:.1f} cores: a long batch looks like this too")
            rooms, total = involved(case, view)
            where = f"scheduler {pid} of {view.name}" if pid else f"the scheduler of {view.name}"
            yield Finding(
                "stopped_scheduler",
                Severity.FAULT,
                support,
                f"{view.name}: HTTP → scheduler",
                f"{where} " + ("is stopped by a signal" if halted else "does not come round"),
                (*evidence, *_stack_of(process), *_front(view)),
                tuple(against),
                (
                    f"kill -CONT {pid}, if nobody debugs it; else restart {view.name} alone"
                    if halted
                    else f"keep its stacks (py-spy dump --pid {pid}, or --stacks here), then restart {view.name} alone",
                ),
                None,
                rooms,
                total,
            )


def _standing(view: View) -> Iterator[tuple[Rank | None, Process | None, list[str], Support]]:
    seen = set()
    for rank in view.ranks:
        process = view.process(rank.pid)
        seen.add(rank.pid)
        silent = rank.problem is not None and not rank.gone
        halted = process is not None and process.state in "Tt"
        old = rank.loop_age is not None and rank.loop_age > LOOP_S
        if not (silent or halted or old):
            continue
        evidence = [f"process {process.pid} is in state {process.state}"] if halted and process else []
        evidence += [f"rank {rank.name}: {rank.problem}"] if silent else []
        evidence += [f"rank {rank.name}: its loop came round {seconds(rank.loop_age or 0.0)} ago"] if old else []
        yield rank, process, evidence, Support.SURE if halted or old else Support.LIKELY
    for process in view.schedulers:
        if process.pid not in seen and process.state in "Tt":
            yield None, process, [f"process {process.pid} is in state {process.state}"], Support.SURE
            seen.add(process.pid)
    info = view.server.replies.get(INFO)
    if not seen and view.answers and info is not None and info.status is None and any(map(runs, view.schedulers or [])):
        evidence = [f"{INFO}, which passes through the scheduler: {info.problem}"]
        yield None, view.schedulers[0], evidence, Support.LIKELY


def threads(case: Case) -> Iterator[Finding]:
    """The loop comes round, and requests stay where they are."""
    for view in case.servers:
        for rank in view.ranks:
            down = {name: one for name, one in (rank.status.get("threads") or {}).items() if not one.get("up", True)}
            if not down:
                continue
            rooms, total = involved(case, view)
            yield Finding(
                "control_thread",
                Severity.FAULT,
                Support.SURE,
                f"{view.name}: control thread of rank {rank.name}",
                f"{view.name} has lost {', '.join(down)}",
                tuple(f"{name} is down: {one.get('last_error')}" for name, one in down.items()),
                (),
                (f"restart {view.name} alone; report the error of the thread",),
                None,
                rooms,
                total,
            )


def involved(case: Case, view: View, since: float | None = None) -> tuple[tuple[RoomRef, ...], int]:
    """The rooms that this server's trouble concerns: live ones of its own and of its peers, and those that failed
    ``since`` then, or lately where nothing tells since when."""
    after = case.at - RECENT_S if since is None else since - LOG_S
    rooms: list[Room] = list(view.live)
    for other in case.others(view):
        failed = [one for one in other.failed(PEER_REASONS) if (one.ended_at or 0.0) > after]
        rooms += [one for one in [*other.live, *failed] if case.peer_of(other, one) is view]
    return case.refs(rooms)


def runs(one: Process) -> bool:
    return one.state not in ("Z", "X", "gone")


def _is_launcher(one: Process) -> bool:
    return any("launch_server" in word or word == "serve" for word in one.command)


def _stack_of(process: Process | None) -> list[str]:
    """Where the main thread is, in a line."""
    if process is None or not process.stack:
        return []
    lines = [line.strip() for line in process.stack.splitlines()]
    main = (f"Thread {process.pid} ", f"Thread 0x{process.pid:x} ")
    start = next((index for index, line in enumerate(lines) if line.startswith(main) or "MainThread" in line), None)
    frames = lines[start + 1 : start + 3] if start is not None else []
    return [f"its main thread is in {' < '.join(frames)}"] if frames else []
