"""Local processes as ``/proc`` shows them: who they are, what they were started with, and whether they work."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sglang_pd.cluster.procfs import PROC, Stat, age_s, members, parse_stat, stat, table
from sglang_pd.cluster.status import title
from sglang_pd.doctor.evidence import Process, Thread

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Of the environment: what changes how a server works. Others are searched for secrets, and not kept.
KEPT = (
    *("SGLANG", "SGL_", "UCX_", "NIXL_", "NCCL_", "GLOO_", "CUDA_", "OMP_", "TORCH", "TRITON", "HF_", "RUST_LOG"),
    *("FLASHINFER", "KUBERNETES_", "INVOCATION_ID", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
)
# A thread that used less, and only sleeps, says nothing; beyond so many the list says nothing either.
BUSY_CORES = 0.05
MOST_THREADS = 12
SCHEDULER = "sglang::scheduler"


@dataclass(frozen=True)
class Look:
    """A process tree at one moment (monotonic ``at``): CPU ticks used so far, by thread, by process."""

    at: float
    ticks: dict[int, dict[int, int]]
    states: dict[int, dict[int, tuple[str, str]]]


def tree(pid: int) -> list[Stat]:
    """The process and all that belong to it, itself first, zombies too; empty where it is gone."""
    root = stat(pid)
    if root is None:
        return []
    every = table()
    found = {one.pid: one for one in [root, *members(root.identity, every)]}
    # A child that ended, and was not asked for, is what tells of its death.
    found.update((one.pid, one) for one in every if one.parent == pid and not one.runs)
    return list(found.values())


def look(pids: Iterable[int]) -> Look:
    ticks: dict[int, dict[int, int]] = {}
    states: dict[int, dict[int, tuple[str, str]]] = {}
    now = time.monotonic()
    for pid in pids:
        ticks[pid], states[pid] = {}, {}
        for tid in _tids(pid):
            text = _read(pid, f"task/{tid}/stat")
            if text:
                one = parse_stat(text)
                ticks[pid][tid] = cpu_ticks(text)
                states[pid][tid] = (one.name, one.state)
    return Look(now, ticks, states)


def cpu_ticks(text: str) -> int:
    """User and system time of one line of a ``stat`` file, in clock ticks (see proc(5))."""
    fields = text.rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])


def describe(one: Stat, before: Look, after: Look, environment: Mapping[str, str] | None = None) -> Process:
    """What ``one`` is, and what it did between two looks. ``environment``: all of it, where it was read already."""
    seconds = max(after.at - before.at, 1e-3)
    used = {
        tid: max(0, ticks - before.ticks.get(one.pid, {}).get(tid, ticks)) / TICKS / seconds
        for tid, ticks in after.ticks.get(one.pid, {}).items()
    }
    states = after.states.get(one.pid, {})
    now = stat(one.pid)
    age = age_s(one.identity)
    return Process(
        pid=one.pid,
        parent=one.parent,
        title=title(one),
        state=now.state if now is not None and now.started == one.started else "gone",
        started_at=round(time.time() - age, 3),
        age_seconds=round(age, 3),
        cores=round(sum(used.values()), 3),
        rss_bytes=_resident(one.pid),
        thread_count=len(states),
        threads=_threads(one.pid, states, used),
        command=command(one.pid),
        environment=kept(read_environment(one.pid) if environment is None else environment),
    )


def _threads(pid: int, states: Mapping[int, tuple[str, str]], used: Mapping[int, float]) -> list[Thread]:
    chosen = [
        tid for tid, (_, state) in states.items() if tid == pid or state in "RDZ" or used.get(tid, 0) > BUSY_CORES
    ]
    chosen.sort(key=lambda tid: (tid != pid, -used.get(tid, 0.0), tid))
    return [
        Thread(tid, *states[tid], round(used.get(tid, 0.0), 3), _waits_in(pid, tid, states[tid][1]))
        for tid in chosen[:MOST_THREADS]
        if tid in states
    ]


def _waits_in(pid: int, tid: int, state: str) -> str | None:
    """The function of the kernel that a thread sleeps in; None where it runs, or the kernel does not say."""
    if state == "R":
        return None
    return (_read(pid, f"task/{tid}/wchan") or "").strip("0\n") or None


def command(pid: int) -> list[str]:
    return words((_read(pid, "cmdline") or "").rstrip("\0"))


def words(text: str) -> list[str]:
    """The arguments of ``/proc/PID/cmdline``; pure. A process that gave itself a title has all of them in one."""
    found = text.split("\0")
    if len(found) > 1 or " --" not in text:
        return found
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def read_environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty where that is not for us to see. A process that gave itself a title may
    have written over it."""
    pairs = (one.partition("=") for one in (_read(pid, "environ") or "").split("\0"))
    return {name: value for name, equals, value in pairs if equals and name.replace("_", "a").isalnum()}


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in sorted(environment) if name.startswith(KEPT)}


def flag(arguments: Sequence[str], *names: str) -> str | None:
    """The value of the last of these flags on a command line, in upstream's spelling; None where there is none."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else (arguments[index + 1] if index + 1 < len(arguments) else None)
    return found


def output_of(pid: int) -> str | None:
    """The file that a process writes its output to; None where it is no file, or not for us to see."""
    for number in (2, 1):
        try:
            path = os.readlink(PROC / str(pid) / "fd" / str(number))
        except OSError:
            continue
        if path.startswith("/") and os.path.isfile(path):
            return path
    return None


def without_parents(processes: list[Process]) -> list[Process]:
    """Only the first keeps what all of them inherited."""
    if not processes:
        return []
    first = processes[0].environment
    return [
        processes[0],
        *(
            replace(one, environment={name: text for name, text in one.environment.items() if first.get(name) != text})
            for one in processes[1:]
        ),
    ]


def _resident(pid: int) -> int | None:
    """Bytes; from where the kernel need not walk through all pages to tell."""
    fields = (_read(pid, "statm") or "").split()
    return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else None


def _tids(pid: int) -> list[int]:
    try:
        return sorted(int(tid) for tid in os.listdir(PROC / str(pid) / "task"))
    except OSError:
        return []


def _read(pid: int, name: str) -> str | None:
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="replace")
    except OSError:
        return None
