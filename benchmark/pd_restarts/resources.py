"""What a prefill server holds, before and after many restarts of a decode."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import psutil

# Resident memory also moves with what a server computes: caches of the allocator, the radix tree.
RSS_SLACK_MIB = 64


@dataclass(frozen=True)
class Resources:
    """Of a prefill's scheduler process; ``agents``: decodes registered with it, ``rooms``: live ones, both by its own
    account (None for upstream's classes, which keep none)."""

    descriptors: int
    threads: int
    rss_mib: int
    agents: int | None
    rooms: int | None


def measured(scheduler: psutil.Process, status: Mapping[str, Any] | None, peers: Mapping[str, Any] | None) -> Resources:
    """``status`` and ``peers``: the rank's own answers to ``/pd/status`` and ``/pd/peers``."""
    with scheduler.oneshot():
        rooms = (status or {}).get("rooms") or {}
        live = rooms.get("live")
        known = (peers or {}).get("peers")
        return Resources(
            descriptors=scheduler.num_fds(),
            threads=scheduler.num_threads(),
            rss_mib=scheduler.memory_info().rss >> 20,
            agents=None if known is None else sum(one.get("agent") is not None for one in known),
            rooms=None if live is None else sum(one["rooms"] for one in live.values()),
        )


def growth(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """What grew, and by how much; memory within its slack did not."""
    grown = {}
    for what, now in after.items():
        if now is None or before[what] is None:
            continue
        by = now - before[what]
        if by > (RSS_SLACK_MIB if what == "rss_mib" else 0):
            grown[what] = by
    return grown


def row(resources: Resources) -> dict[str, Any]:
    return asdict(resources)


def scheduler_of(pid: int) -> psutil.Process | None:
    """The scheduler process of the server with this pid."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                if one.cmdline()[0].startswith("sglang::scheduler"):
                    return one
    return None
