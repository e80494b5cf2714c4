"""What the other ranks of this server do, asked over their own ports while this one's loop may be blocked."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sglang.srt.disaggregation.reliable.watchdog_cause import Rank
from sglang.srt.disaggregation.reliable.watchdog_stacks import Place
from sglang_pd import ranks
from sglang_pd.ranks import Rank as Announced
from sglang_pd.status import STACKS, STATUS

TIMEOUT_S = 1.0


def others(own_pid: int) -> list[Announced]:
    """The ranks that run in step with that of this process; none where no server started it."""
    try:
        every = ranks.announced(ranks.folder())
    except (RuntimeError, OSError):
        return []
    own = next((one for one in every if one.pid == own_pid), None)
    if own is None:
        return []
    names = in_step(own.name, [one.name for one in every])
    return [one for one in every if one.name in names and one is not own]


def in_step(own: str, names: Collection[str]) -> set[str]:
    """The ranks, by name, that share collectives with ``own``: all, unless data-parallel groups have one each of the
    same place, and so are servers of their own; pure."""
    places = [_place(name) for name in names]
    if len(set(places)) == len(places):
        return set(names)
    group = own.removesuffix(_place(own))
    return {name for name in names if name.removesuffix(_place(name)) == group}


def ask(rank: Announced) -> Rank:
    """Where the rank's loop is; takes :data:`TIMEOUT_S` at most, a stopped one included."""
    if not rank.lives:
        return Rank(rank.name, problem=f"its process {rank.pid} is gone")
    said, problem = _get(rank.port, STACKS)
    if said is None:
        return Rank(rank.name, problem=problem)
    return Rank(rank.name, said["loop_age_seconds"], Place(said["place"]), said["frame"])


def ask_all(ranks: Collection[Announced]) -> list[Rank]:
    """All at once: those that do not answer cost :data:`TIMEOUT_S` together."""
    if not ranks:
        return []
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(ask, ranks))


def has_told(rank: Announced) -> bool:
    """Whether a rank that speaks for its server has found a stall itself."""
    said, _ = _get(rank.port, STATUS)
    return said is not None and bool(said["speaks"]) and bool((said.get("stalls") or {}).get("open"))


def _get(port: int, path: str) -> tuple[dict[str, Any] | None, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        return (json.loads(text), None) if answer.status == 200 else (None, f"answered {answer.status}")
    except TimeoutError:
        return None, f"no answer within {TIMEOUT_S:g} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return None, f"no answer: {error}"
    finally:
        connection.close()


def _place(name: str) -> str:
    """A rank's name without its data-parallel part."""
    return re.sub(r"^dp\d+-", "", name)
