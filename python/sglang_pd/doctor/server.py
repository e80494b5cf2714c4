"""Gathers the evidence of one target: asks it, looks at its processes, reads its log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from sglang_pd.doctor import direct, listeners, logs, masking, processes, stacks
from sglang_pd.doctor.evidence import Log, Process, Reply, Server
from sglang_pd.doctor.fetch import get
from sglang_pd.doctor.paths import HEALTH, INFO, OF_GATEWAY, OF_SERVER, PD, READY, SILENT, STATUS, TWICE
from sglang_pd.doctor.processes import SCHEDULER
from sglang_pd.doctor.shapes import field, objects
from sglang_pd.doctor.targets import Target
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.doctor.trim import trimmed, without_doubles

WINDOW_S = 1.5
AFTER_S = 0.3
# The rooms that failed, of so many reasons, the most frequent first.
REASONS, ROOMS_OF_A_REASON = 3, 12
# A loop that is this old is not merely busy; ``/pd/ready`` says so from then on.
LOOP_S = 20.0


@dataclass(frozen=True)
class Options:
    """``timeout``: seconds for each target; ``stacks``: of every scheduler, not of those only that look wedged."""

    timeout: float = 5.0
    stacks: bool = False
    api_key: str | None = None


@dataclass(frozen=True)
class Gathered:
    """``secrets``: that were met on the way. ``key``: what the server's API is asked with."""

    server: Server
    secrets: set[str]
    key: str | None = None


@dataclass(frozen=True)
class Tree:
    """A server's processes, their main one first, and what is secret of theirs."""

    processes: list[Process]
    secrets: set[str]


def gather(target: Target, options: Options, deadline: Deadline, listening: Task[dict[int, int | None]]) -> Gathered:
    """The evidence of one target; ends by the deadline."""
    half = Deadline(deadline.left / 2)
    ports = _listening(listening, half)
    pid = main_pid(target, ports)
    environment = processes.read_environment(pid) if pid else {}
    command = processes.command(pid) if pid else []
    own_key = processes.flag(command, "--api-key")
    secrets = {own_key} if own_key else set()
    tree = Task(_tree, pid, min(WINDOW_S, deadline.left / 2)) if pid else None
    log = Task(_log, target, pid, deadline)
    key = options.api_key or own_key
    asked = {path: Task(get, target.url, path, deadline, key) for path in _paths(target)} if target.url else {}
    if INFO in asked and target.url:
        # Upstream calls a server unhealthy, until it is asked again, whose scheduler does not answer this one in 20 s.
        asked[HEALTH] = Task(_health, target.url, asked[INFO], deadline, key)
    soon = {path: _reply(path, task, half) for path, task in asked.items() if path != HEALTH}
    again = _again(target, soon, half, deadline, key)
    ranks = direct.announced(pid, environment) if pid else []
    said = {
        path: Task(direct.ask, path, target.role or "", ranks, deadline)
        for path in PD
        if ranks and not soon.get(path, Reply(path)).ok
    }
    found = _result(tree, deadline)
    dumps = _stacks(found, soon, options, deadline)
    replies = {path: _reply(path, task, deadline) for path, task in asked.items()}
    replies |= {path: reply for path, task in said.items() if (reply := _result(task, deadline)) is not None}
    replies |= _of_reasons(target, replies, deadline, key)
    tree_processes = [_with_stack(one, dumps, deadline) for one in found.processes] if found else None
    server = Server(
        name=target.name,
        role=target.role or _role(replies),
        url=target.url,
        replies=without_doubles({path: trimmed(reply) for path, reply in replies.items()}),
        later={path: trimmed(_reply(path, task, deadline)) for path, task in again.items()},
        window_seconds=WINDOW_S,
        processes=tree_processes,
        expected_pid=target.pid,
        ports=listeners.ports_of({one.pid for one in tree_processes or []}, ports),
        log=_result(log, deadline),
        unit=target.unit,
    )
    secrets |= found.secrets if found else set()
    secrets |= masking.of_environment(environment) | masking.of_command(command)
    return Gathered(server, secrets, key)


def main_pid(target: Target, ports: Mapping[int, int | None]) -> int | None:
    """The target's main process: as it is known, else the one that listens at its URL, where that is this machine."""
    if target.pid is not None:
        return target.pid
    if target.url is None or not listeners.is_local(target.url):
        return None
    return ports.get(urlsplit(target.url).port or 0)


def looks_wedged(one: Process, replies: Mapping[str, Reply]) -> bool:
    """Whether a scheduler's stack is worth a look: it stands still, is silent, or its loop does not come round."""
    if one.state in "Tt" or one.state == "D":
        return True
    status = replies.get(STATUS)
    for rank in objects(status.body, "ranks") if status is not None and status.ok else []:
        if rank.get("pid") == one.pid:
            age = field(rank, "said").get("loop_age_seconds")
            return rank.get("problem") is not None or (isinstance(age, int | float) and age > LOOP_S)
    info = replies.get(INFO)
    return info is not None and info.status is None


def _paths(target: Target) -> tuple[str, ...]:
    return OF_GATEWAY if target.role == "gateway" else OF_SERVER


def _listening(task: Task[dict[int, int | None]], deadline: Deadline) -> dict[int, int | None]:
    try:
        return task.result(deadline)
    except TimeoutError:
        return {}


def _tree(pid: int, window_s: float) -> Tree | None:
    stats = processes.tree(pid)
    if not stats:
        return None
    pids = [one.pid for one in stats]
    before = processes.look(pids)
    time.sleep(window_s)
    after = processes.look(pids)
    environments = {one.pid: processes.read_environment(one.pid) for one in stats}
    found = [processes.describe(one, before, after, environments[one.pid]) for one in stats]
    found[0] = replace(found[0], title="main")
    secrets = {secret for one in environments.values() for secret in masking.of_environment(one)}
    return Tree(processes.without_parents(found), secrets)


def _log(target: Target, pid: int | None, deadline: Deadline) -> Log | None:
    if target.unit is not None:
        return logs.of_unit(target.name, deadline.left)
    path = target.log or (processes.output_of(pid) if pid else None)
    return logs.of_file(path) if path else None


def _health(url: str, info: Task[Reply], deadline: Deadline, key: str | None) -> Reply:
    # That one passes through the scheduler too, and leaves nothing behind.
    if not info.result(deadline).ok:
        return Reply(HEALTH, problem=SILENT)
    # It makes an idle server compute a token, which must not be taken for work: after the second look.
    time.sleep(min(WINDOW_S + AFTER_S, deadline.left))
    return get(url, HEALTH, deadline, key)


def _again(
    target: Target, soon: Mapping[str, Reply], half: Deadline, deadline: Deadline, key: str | None
) -> dict[str, Task[Reply]]:
    if target.url is None:
        return {}
    paths = [path for path in TWICE if path in soon and soon[path].ok]
    first = max((soon[path].seconds for path in paths), default=0.0)
    wait_s = max(0.0, WINDOW_S - max(0.0, half.seconds - half.left - first))
    return {path: Task(_after, wait_s, target.url, path, deadline, key) for path in paths}


def _after(wait_s: float, url: str, path: str, deadline: Deadline, key: str | None) -> Reply:
    time.sleep(min(wait_s, deadline.left))
    return get(url, path, deadline, key)


def _of_reasons(target: Target, replies: Mapping[str, Reply], deadline: Deadline, key: str | None) -> dict[str, Reply]:
    """The rooms that failed for the most frequent reasons: among all that ended they may be few."""
    status = replies.get(STATUS)
    counts: dict[str, int] = {}
    if target.url and status is not None and status.ok and status.problem is None:
        for rank in objects(status.body, "ranks"):
            for reason, number in field(rank, "said", "rooms", "failed_by_reason").items():
                counts[reason] = counts.get(reason, 0) + (number if isinstance(number, int) else 0)
    most = sorted(counts, key=lambda reason: -counts[reason])[:REASONS]
    paths = [f"/pd/rooms?reason={quote(reason)}&limit={ROOMS_OF_A_REASON}" for reason in most]
    tasks = {path: Task(get, target.url or "", path, deadline, key) for path in paths}
    return {path: _reply(path, task, deadline) for path, task in tasks.items()}


def _stacks(
    tree: Tree | None, soon: Mapping[str, Reply], options: Options, deadline: Deadline
) -> dict[int, Task[tuple[str | None, str | None]]]:
    schedulers = [one for one in (tree.processes if tree else []) if one.title.startswith(SCHEDULER)]
    wanted = [one for one in schedulers if options.stacks or looks_wedged(one, soon)]
    return {one.pid: Task(stacks.dump, one.pid, deadline.left) for one in wanted if one.state not in ("Z", "X", "gone")}


def _with_stack(one: Process, dumps: Mapping[int, Task[tuple[str | None, str | None]]], deadline: Deadline) -> Process:
    if one.pid not in dumps:
        return one
    stack, problem = _result(dumps[one.pid], deadline) or (None, "py-spy did not end in time")
    return replace(one, stack=stack, stack_problem=problem)


def _role(replies: Mapping[str, Reply]) -> str | None:
    for path in (STATUS, READY):
        reply = replies.get(path)
        if reply is not None and isinstance(reply.body, dict) and reply.body.get("role"):
            return str(reply.body["role"])
    return None


def _reply(path: str, task: Task[Reply], deadline: Deadline) -> Reply:
    try:
        return task.result(deadline)
    except TimeoutError:
        return Reply(path, problem=f"no answer within {deadline.seconds:.1f} s", seconds=deadline.seconds)


def _result(task: Task | None, deadline: Deadline):  # type: ignore[no-untyped-def]
    """What the task returned; None where there is no task, or it is not done in time."""
    if task is None:
        return None
    try:
        return task.result(deadline)
    except TimeoutError:
        return None
