"""How far a process has come, from what it logs and what it answers. Pure.

The lines are upstream's (0.5.23): ``entrypoints/engine.py``, ``model_runner.py``, ``kv_cache_configurator.py``,
``cuda_graph_setup.py``, ``http_server.py``. A line that no longer comes only makes the display coarser: readiness is
decided by ``/health`` and the gateway's ``/workers``, never by the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """In the order in which a start passes them; a process may skip some.

    A server imports from its first moment on, logs its arguments when it is done with that, and spawns its scheduler
    and detokenizer.
    """

    STARTING = "starting"
    IMPORTING = "importing"
    SPAWNING = "spawning"
    LOADING = "loading model"
    ALLOCATING = "allocating cache"
    CAPTURING = "capturing graphs"
    WARMING = "warming up"
    WAITING = "awaiting workers"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


_ORDER = {phase: rank for rank, phase in enumerate(Phase)}
ENDED = (Phase.STOPPED, Phase.FAILED)

_MARKS = (
    (re.compile(r"\bserver_args=ServerArgs\(|\bserver_args=\{"), Phase.SPAWNING),
    (re.compile(r"\bLoad weight begin\b"), Phase.LOADING),
    (re.compile(r"\bLoad weight end\b|\bKV Cache is allocated\b"), Phase.ALLOCATING),
    (re.compile(r"\bCapture .*\bgraph\b.* begin\b|\bCapture cpu graph bs\b", re.IGNORECASE), Phase.CAPTURING),
    (re.compile(r"\bUvicorn running\b|\bApplication startup complete\b|\bdisaggregation warmup \.\.\."), Phase.WARMING),
)


def _later(one: Phase, other: Phase) -> Phase:
    return other if _ORDER[other] > _ORDER[one] else one


def after_line(phase: Phase, line: str) -> Phase:
    """The phase of a server after it logged ``line``; never an earlier one than ``phase``."""
    for mark, reached in _MARKS:
        if mark.search(line):
            phase = _later(phase, reached)
    return phase


def after_health(phase: Phase, status: int | None) -> Phase:
    """The phase of a server after ``GET /health`` answered ``status`` (None: no answer).

    Upstream answers 503 from when it listens until its warm-up request has passed.
    """
    if status is None:
        return phase
    return _later(phase, Phase.READY if status == 200 else Phase.WARMING)


def registered(answer: Mapping[str, Any], urls: Iterable[str]) -> list[str]:
    """Those of ``urls`` that the gateway's ``GET /workers`` calls healthy."""
    healthy = {str(one.get("url", "")).rstrip("/") for one in answer.get("workers", ()) if one.get("is_healthy")}
    return [url for url in urls if url in healthy]


def after_workers(phase: Phase, known: int, wanted: int) -> Phase:
    """The phase of the gateway that answered and has ``known`` of ``wanted`` workers."""
    return _later(phase, Phase.READY if known >= wanted else Phase.WAITING)
