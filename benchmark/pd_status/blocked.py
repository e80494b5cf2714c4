"""How long /pd/status, /pd/rooms and /pd/peers take while the scheduler's main thread is blocked, asked all the while.

python benchmark/pd_status/blocked.py --seconds 30

Each way of blocking is done on both roles at once: ``block`` waits, as in a collective; ``spin`` works in Python.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from harness.managers import TCP, WAITING, Nursery, Pair, RoleProcess

PATHS = ("/pd/status", "/pd/rooms", "/pd/peers")
LIMIT_S = 1.0
# Between two rounds of questions, in seconds.
PAUSE_S = 0.1


def ask(port: int, path: str) -> float:
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200 or json.loads(text)["schema"]["name"] != f"sglang-pd/{path.rpartition('/')[2]}":
        raise RuntimeError(f"{path} answered {answer.status}: {text[:200]!r}")
    return time.monotonic() - start


def watch(role: RoleProcess, how: str, seconds: float) -> list[float]:
    """The seconds that each answer took while the role's main thread was blocked, ``how``: ``block`` or ``spin``."""
    port = role.call("listen")
    blocked = threading.Thread(target=role.call, args=(how, seconds))
    blocked.start()
    took = []
    while blocked.is_alive():
        took += [ask(port, path) for path in PATHS]
        time.sleep(PAUSE_S)
    return took


def main() -> int:
    """Exit status: 0, 1 where an answer took longer than a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="that the main thread is blocked (default 30)")
    parser.add_argument("--how", choices=("block", "spin"), nargs="+", default=["block", "spin"])
    options = parser.parse_args()
    slowest = 0.0
    with Nursery() as nursery:
        pair = Pair(nursery, TCP, TCP)
        pair.transfer()
        room = pair.room()
        pair.open(room)
        pair.prefill.call("wait", room, [WAITING], 10.0)
        for how in options.how:
            roles = (pair.prefill, pair.decode)
            with ThreadPoolExecutor(len(roles)) as pool:
                watching = [pool.submit(watch, role, how, options.seconds) for role in roles]
            for role, watched in zip(roles, watching, strict=True):
                seconds = watched.result()
                median, most = statistics.median(seconds), max(seconds)
                slowest = max(slowest, most)
                took = f"median {median * 1e3:.1f} ms, slowest {most * 1e3:.1f} ms"
                print(f"{role.spec.mode}, {how} for {options.seconds:g} s: {len(seconds)} answers, {took}")
        pair.close()
    return int(slowest > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
