"""Three faults on real servers, each on a fresh fleet: what a client sees, and when."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from harness.fleet import Answer, Fleet, Server, ask, foreign_message, generation

PROMPT_TOKENS = 256
LONG_PROMPT_TOKENS = 3000
ROOMS_IN_FLIGHT = 8
PROBES = 20
PROBE_EVERY_S = 0.5
# From the signal that stops a decode until its requests' prompts are computed: the rest is the fault's own doing.
SETTLE_S = 8.0
PATIENCE_S = 150.0
WARM_UPS = 3


@dataclass(frozen=True)
class Seen:
    """What a client got. ``reason`` is the one the server names, empty where it names none."""

    status: int | None
    seconds: float
    reason: str

    @classmethod
    def of(cls, answer: Answer) -> Seen:
        found = re.search(r"\b([a-z]+(?:_[a-z]+)+): [A-Z]", answer.text)
        failed = answer.status != 200
        return cls(answer.status, round(answer.seconds, 3), found[1] if failed and found else "")


@dataclass(frozen=True)
class Loss:
    """How many of some requests succeeded, and their latencies in seconds, the failed ones' included."""

    served: int
    asked: int
    median: float
    longest: float

    @classmethod
    def of(cls, answers: list[Answer]) -> Loss:
        seconds = [answer.seconds for answer in answers]
        served = sum(answer.status == 200 for answer in answers)
        return cls(served, len(answers), round(statistics.median(seconds), 3), round(max(seconds), 3))


def prompt(tokens: int, dice: random.Random) -> list[int]:
    return dice.choices(range(256), k=tokens)


def warm_up(fleet: Fleet, dice: random.Random) -> None:
    """Every decode has met the prefill; raises ``AssertionError`` where a request fails without a fault."""
    for decode in fleet.decode_servers * WARM_UPS:
        answers = fleet.both(generation(prompt(PROMPT_TOKENS, dice)), decode=decode)
        assert answers["decode"].status == 200, answers


def one(fleet: Fleet, dice: random.Random, decode: Server | None = None) -> Answer:
    """A request as the client of a gateway sees it: decode's answer."""
    return fleet.both(generation(prompt(PROMPT_TOKENS, dice)), decode=decode, timeout=PATIENCE_S)["decode"]


def foreign(fleet: Fleet, dice: random.Random) -> dict[str, Any]:
    """One frame of foreign traffic at a prefill rank's control port."""
    before = Seen.of(one(fleet, dice))
    foreign_message(fleet.prefill.rank_address(), b"GET / HTTP/1.1")
    time.sleep(1)
    after = Seen.of(one(fleet, dice))
    return {"before": asdict(before), "next": asdict(after), "ready": fleet.prefill.ready()[0]}


def prefill_abort(fleet: Fleet, dice: random.Random) -> dict[str, Any]:
    """Prefill aborts a request before decode has sent its metadata; decode asks for it afterwards."""
    body = generation(prompt(PROMPT_TOKENS, dice), rid="to-be-aborted") | fleet.room()
    with ThreadPoolExecutor(1) as pool:
        prefill = pool.submit(ask, fleet.prefill.url + "/generate", body, PATIENCE_S)
        time.sleep(1)
        assert not prefill.done(), prefill.result()
        ask(fleet.prefill.url + "/abort_request", {"rid": body["rid"]})
        aborted = prefill.result()
    decode = ask(fleet.decode.url + "/generate", {**body, "rid": "asked-afterwards"}, PATIENCE_S)
    return {
        "prefill": asdict(Seen.of(aborted)),
        "decode": asdict(Seen.of(decode)),
        "next": asdict(Seen.of(one(fleet, dice))),
    }


def hung_decode(fleet: Fleet, dice: random.Random) -> dict[str, Any]:
    """One decode of two is stopped while 8 of its rooms are in flight; the other one is asked before and meanwhile."""
    hung, other = fleet.decode_servers
    before = probe(fleet, other, dice)
    with ThreadPoolExecutor(2 * ROOMS_IN_FLIGHT) as pool, ExitStack() as stack:
        rooms = [_hand_over(pool, fleet, hung, dice) for _ in range(ROOMS_IN_FLIGHT)]
        time.sleep(0.5)
        stack.enter_context(hung.stopped())
        start = time.monotonic()
        in_flight = sum(not prefill.done() for prefill, _ in rooms)
        time.sleep(SETTLE_S)
        during = probe(fleet, other, dice)
        ends = [_ended(prefill, start) for prefill, _ in rooms]
        stack.close()
        after = Seen.of(one(fleet, dice, hung))
    seconds = sorted(end[0] for end in ends if end is not None)
    reasons = sorted({end[1].reason or f"status {end[1].status}" for end in ends if end is not None})
    return {
        "before": asdict(before),
        "during": asdict(during),
        "in_flight": in_flight,
        "rooms_ended_s": [round(one, 1) for one in seconds],
        "rooms_not_ended": ends.count(None),
        "reasons": reasons,
        "next_of_the_hung_one": asdict(after),
    }


def probe(fleet: Fleet, decode: Server, dice: random.Random) -> Loss:
    """Requests at fixed times, each whether or not the one before was answered."""
    with ThreadPoolExecutor(PROBES) as pool:
        asked = []
        start = time.monotonic()
        for number in range(PROBES):
            time.sleep(max(0.0, start + number * PROBE_EVERY_S - time.monotonic()))
            asked.append(pool.submit(one, fleet, dice, decode))
        return Loss.of([answer.result() for answer in asked])


Asked = tuple["Future[Answer]", "Future[Answer]"]


def _hand_over(pool: ThreadPoolExecutor, fleet: Fleet, decode: Server, dice: random.Random) -> Asked:
    body = generation(prompt(LONG_PROMPT_TOKENS, dice)) | fleet.room()
    urls = (server.url + "/generate" for server in (fleet.prefill, decode))
    prefill, answer = (pool.submit(ask, url, body, 2 * PATIENCE_S) for url in urls)
    return prefill, answer


def _ended(prefill: Future[Answer], start: float) -> tuple[float, Seen] | None:
    """Seconds from ``start`` to prefill's answer, and the answer; None where it takes longer than our patience."""
    try:
        answer = prefill.result(max(0.0, start + PATIENCE_S - time.monotonic()))
    except TimeoutError:
        return None
    return answer.at - start, Seen.of(answer)


SCENARIOS: Mapping[str, tuple[int, Callable[[Fleet, random.Random], dict[str, Any]]]] = {
    "foreign-frame": (1, foreign),
    "prefill-abort": (1, prefill_abort),
    "hung-decode": (2, hung_decode),
}
"""By name: the number of decodes, and what is done."""
