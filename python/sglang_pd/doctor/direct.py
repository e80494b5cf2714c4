"""Asks a local server's scheduler ranks themselves, where its own port does not let the doctor know."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from sglang_pd import ranks
from sglang_pd.asking import Heard
from sglang_pd.cluster.procfs import PROC, identify
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.fetch import get
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.ranks import Rank
from sglang_pd.status import ANSWER_TIMEOUT_S, merged


def announced(pid: int, environment: Mapping[str, str]) -> list[Rank]:
    """The ranks of the server whose main process this is; empty where they left no word, or not for us to read."""
    main = identify(pid)
    if main is None:
        return []
    try:
        owner = os.stat(PROC / str(pid)).st_uid
        home = Path(environment.get("TMPDIR") or "/tmp") / f"sglang-pd-{owner}"
        return ranks.announced(home / f"{main.pid}-{main.started}")
    except (OSError, ValueError, TypeError):
        return []


def ask(path: str, role: str, found: list[Rank], deadline: Deadline) -> Reply:
    """What they say at ``path``, in the shape of the server's own answer."""
    tasks = [(rank, Task(_ask, path, rank, Deadline(min(ANSWER_TIMEOUT_S, deadline.left)))) for rank in found]
    heard = []
    for rank, task in tasks:
        try:
            heard.append(task.result(deadline))
        except TimeoutError:
            heard.append(Heard(rank, None, "no answer in time"))
    body = json.loads(json.dumps(merged(path.partition("?")[0], role, heard)))
    return Reply(path, 200, max((one.seconds for one in heard), default=0.0), body, "the ranks themselves were asked")


def _ask(path: str, rank: Rank, deadline: Deadline) -> Heard:
    if not rank.lives:
        return Heard(rank, None, f"its process {rank.pid} is gone")
    reply = get(f"http://127.0.0.1:{rank.port}", path, deadline)
    said = reply.body if reply.ok and isinstance(reply.body, dict) else None
    problem = None if said is not None else reply.problem or f"answered {reply.status}"
    return Heard(rank, said, problem, reply.seconds)
