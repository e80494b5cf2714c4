"""What a pair of servers costs while nobody asks it for anything."""

from __future__ import annotations

import time

from harness.fleet import Fleet

# The end of the last request and the garbage it leaves behind.
SETTLE_S = 5.0


def idle(fleet: Fleet, seconds: float) -> dict[str, float]:
    """CPU seconds per second of all processes of each role, over ``seconds``."""
    time.sleep(SETTLE_S)
    start, before = time.monotonic(), {server.role: server.cpu_seconds() for server in fleet.servers}
    time.sleep(seconds)
    spent = time.monotonic() - start
    return {server.role: round((server.cpu_seconds() - before[server.role]) / spent, 4) for server in fleet.servers}
