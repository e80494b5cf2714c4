"""Asks servers for what the view shows: all of them, and all of it, at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sglang_pd.doctor import processes
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.fetch import get
from sglang_pd.doctor.targets import Target
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.top.reading import Answers
from sglang_pd.top.screen import ROOMS

TIMEOUT_S = 3.0
PATHS = {
    "ready": "/pd/ready",
    "status": "/pd/status",
    "rooms": f"/pd/rooms?state=live&limit={ROOMS}",
    "peers": "/pd/peers",
}


def servers(targets: Sequence[Target]) -> list[Target]:
    """Those that have something to show: the gateway has not."""
    return [target for target in targets if target.role in ("prefill", "decode") and target.url]


def keys(targets: Sequence[Target], given: str | None) -> dict[str, str | None]:
    """By the target's name, what its API is asked with: ``given``, or a local server's own from its command line."""
    return {
        target.name: given or (processes.flag(processes.command(target.pid), "--api-key") if target.pid else None)
        for target in targets
    }


def ask(targets: Sequence[Target], keys: Mapping[str, str | None], timeout_s: float = TIMEOUT_S) -> list[Answers]:
    """One round; takes ``timeout_s`` seconds at most, however many servers hang."""
    deadline = Deadline(timeout_s)
    asked = [
        {path: Task(get, target.url or "", path, deadline, keys[target.name]) for path in PATHS.values()}
        for target in targets
    ]
    found = []
    for target, tasks in zip(targets, asked, strict=True):
        replies = {name: _reply(tasks[path], path, deadline) for name, path in PATHS.items()}
        found.append(answers(target.name, target.role or "", time.monotonic(), replies))
    return found


def _reply(task: Task[Reply], path: str, deadline: Deadline) -> Reply:
    try:
        return task.result(deadline)
    except TimeoutError as error:
        return Reply(path, problem=str(error))


def answers(name: str, role: str, at: float, replies: Mapping[str, Reply]) -> Answers:
    """``/pd/ready`` says why with a 503; of the others only a 200 counts."""
    bodies = {path: reply.body for path, reply in replies.items() if reply.ok}
    ready = replies["ready"]
    if isinstance(ready.body, dict) and "reasons" in ready.body:
        bodies["ready"] = ready.body
    missing = next((reply for reply in replies.values() if reply.path == PATHS["status"] and not reply.ok), None)
    problem = None if missing is None else missing.problem or f"{missing.path} answered {missing.status}"
    return Answers(name, role, at, **bodies, problem=problem)
