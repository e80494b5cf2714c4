"""Decode's look at the prefill servers it knows: is each there, and is it still the same.

Upstream asks them one after the other, so that one which hangs delays the others' answers; here each question has a
thread of its own.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import requests

from sglang.srt.disaggregation.reliable.bootstrap_server import HEADER
from sglang.srt.disaggregation.reliable.questions import Questions

logger = logging.getLogger(__name__)

# Seconds to connect, and to answer.
TIMEOUT_S = (2, 3)
# How often it is looked for what is due or has come, in seconds.
LOOK_S = 0.1


def ask(address: str) -> str | None:
    """The incarnation of the bootstrap server at ``address``, None where it tells none. Raises ``ConnectionError``
    where it is not there or not well."""
    try:
        answer = requests.get(f"http://{address}/health", timeout=TIMEOUT_S)
    except requests.RequestException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    if answer.status_code != requests.codes.ok:
        raise ConnectionError(f"answered {answer.status_code}: {answer.text[:200]}")
    return answer.headers.get(HEADER)


class Heartbeats:
    """When each server is asked, and what came of it; pure. ``misses``: so many in a row, and a server is gone. Times
    are monotonic seconds."""

    def __init__(self, interval_s: float, misses: int) -> None:
        self._interval_s = interval_s
        self._misses = misses
        self._missed: Counter[str] = Counter()
        self._due: dict[str, float] = {}

    def is_due(self, address: str, now: float) -> bool:
        """A server that was met just now is asked an interval later."""
        return now >= self._due.setdefault(address, now + self._interval_s)

    def beat(self, address: str, now: float) -> None:
        self._missed.pop(address, None)
        self._due[address] = now + self._interval_s

    def miss(self, address: str, now: float) -> bool:
        """Returns whether the server counts as gone now; nothing is known of it then."""
        self._missed[address] += 1
        self._due[address] = now + self._interval_s
        if self._missed[address] < self._misses:
            return False
        del self._missed[address], self._due[address]
        return True


def beat_for_ever(manager: Any) -> None:
    """Decode's thread for it; ``manager`` is its ``ReliableKVManager``."""
    questions, heartbeats = Questions(), Heartbeats(manager.heartbeat_interval, manager.max_failures)
    asked: dict[str, Future[str | None]] = {}
    while not manager._heartbeat_shutdown.wait(LOOK_S):
        for address, answer in list(asked.items()):
            if answer.done():
                del asked[address]
                questions.forget(address, answer)
                _heard(manager, heartbeats, address, answer)
        for address in list(manager.prefill_info_table):
            if address not in asked and heartbeats.is_due(address, time.monotonic()):
                asked[address] = questions.ask(address, lambda address=address: ask(address))  # type: ignore[misc]


def _heard(manager: Any, heartbeats: Heartbeats, address: str, answer: Future[str | None]) -> None:
    error, now = answer.exception(), time.monotonic()
    if error is None:
        heartbeats.beat(address, now)
        manager.met(address, answer.result())
        return
    logger.info("prefill %s missed a heartbeat: %s", address, error)
    if heartbeats.miss(address, now):
        manager._handle_node_failure(address)
