"""What a client saw of each request, and what that comes to; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MARGIN_S = 10.0
SHOWN = 40

Key = tuple[int, int]


@dataclass(frozen=True)
class Record:
    """One request. ``began``: monotonic; ``seconds`` until its answer was whole or given up; ``first_s`` until its
    first token, for streamed ones. ``status`` is None where no whole answer came; ``ids`` are the token ids, None
    unless it succeeded. ``stuck``: no answer within our patience. ``said``: the server's words where it failed."""

    session: int
    round: int
    began: float
    seconds: float
    status: int | None
    ids: tuple[int, ...] | None
    streamed: bool = False
    first_s: float | None = None
    stuck: bool = False
    said: str = ""
    worker: str = ""

    @property
    def key(self) -> Key:
        return self.session, self.round

    @property
    def served(self) -> bool:
        return self.ids is not None

    @property
    def reason(self) -> str:
        return reason(self.said)


def reason(said: str) -> str:
    """The reason that our servers name in an error's message; empty where there is none."""
    found = re.search(r"\b([a-z]+(?:_[a-z]+)+): [A-Z]", said)
    return found[1] if found else ""


def reference(records: Iterable[Record]) -> dict[Key, tuple[int, ...]]:
    """The answers of an undisturbed run. Raises ``ValueError`` where a request of it failed, or two of one round
    differ."""
    found: dict[Key, tuple[int, ...]] = {}
    for one in records:
        if one.ids is None:
            raise ValueError(f"session {one.session} round {one.round} failed undisturbed: {one.status} {one.said}")
        if found.setdefault(one.key, one.ids) != one.ids:
            raise ValueError(f"session {one.session} round {one.round} has two answers undisturbed")
    return found


@dataclass(frozen=True)
class Summary:
    """Of the requests of one run. ``failed`` are non-streamed ones that a client saw fail, stuck ones excluded;
    ``broken`` streamed ones, ``silent`` those of them that no error event ended. ``slow``: answered, but later than
    ``bound`` seconds. ``unequal``: served with other tokens than undisturbed. ``by_decode``: the served ones, by
    the decode's URL. Times in seconds."""

    requests: int
    served: int
    failed: int
    broken: int
    silent: int
    stuck: int
    slow: int
    unequal: int
    median: float
    slowest: float
    bound: float
    failures: dict[str, int]
    by_decode: dict[str, int]

    @property
    def clean(self) -> bool:
        return not (self.failed or self.stuck or self.slow or self.unequal or self.silent)


def summarize(records: list[Record], expected: Mapping[Key, tuple[int, ...]], normal_s: float) -> Summary:
    """``normal_s``: the slowest request of the undisturbed run. Raises ``KeyError`` for a request that is not in it."""
    bound = normal_s + MARGIN_S
    seconds = sorted(one.seconds for one in records) or [0.0]
    lost = [one for one in records if not one.served and not one.stuck]
    return Summary(
        requests=len(records),
        served=sum(one.served for one in records),
        failed=sum(not one.streamed for one in lost),
        broken=sum(one.streamed for one in lost),
        silent=sum(one.streamed and not one.said for one in lost),
        stuck=sum(one.stuck for one in records),
        slow=sum(one.seconds > bound and not one.stuck for one in records),
        unequal=sum(one.ids != expected[one.key] for one in records if one.ids is not None),
        median=round(seconds[len(seconds) // 2], 3),
        slowest=round(seconds[-1], 3),
        bound=round(bound, 3),
        failures=dict(Counter(kind(one) for one in lost).most_common()),
        by_decode=dict(Counter(one.worker for one in records if one.served).most_common()),
    )


def kind(record: Record) -> str:
    """How a request failed, in few words: status and reason."""
    status = "no answer" if record.status is None else str(record.status)
    return f"{status} {record.reason}".strip()


def details(records: list[Record], expected: Mapping[Key, tuple[int, ...]], bound: float, zero: float) -> list[dict]:
    """What was not as it should be, request by request, for the raw result; ``at`` counts from ``zero``."""
    wrong: list[dict[str, Any]] = []
    for one in records:
        what = (
            "stuck"
            if one.stuck
            else "failed"
            if not one.served
            else "unequal"
            if one.ids != expected[one.key]
            else "slow"
            if one.seconds > bound
            else ""
        )
        if what:
            row = {"what": what, "session": one.session, "round": one.round, "at": round(one.began - zero, 2)}
            row |= {"seconds": round(one.seconds, 2), "status": one.status, "worker": one.worker}
            wrong.append(row | {"streamed": one.streamed, "said": one.said[:300]})
    return wrong[:SHOWN]


def timeline(records: list[Record], zero: float, width: float = 5.0) -> list[dict[str, float]]:
    """Requests by the moment they ended, in steps of ``width`` seconds: how many, and the slowest of them."""
    steps: dict[int, list[Record]] = {}
    for one in records:
        steps.setdefault(int((one.began + one.seconds - zero) // width), []).append(one)
    return [
        {
            "at": step * width,
            "served": sum(one.served for one in of),
            "not_served": sum(not one.served for one in of),
            "slowest": round(max(one.seconds for one in of), 2),
        }
        for step, of in sorted(steps.items())
    ]
