"""What it costs that many clients poll /pd/status: a pair's transfers with and without them, in turn.

python benchmark/pd_status/bench_pd_status.py --pairs 60
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from harness.managers import Nursery
from pd_transfer import report
from pd_transfer.geometry import Cell
from pd_transfer.measure import Size
from pd_transfer.pairs import TRANSPORTS, Pair, pair

TARGET = 0.99


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", type=Cell.parse, default=Cell.parse("64/1"), help="rooms in flight / pages (64/1)")
    parser.add_argument("--transport", choices=TRANSPORTS, default="shm")
    parser.add_argument("--clients", type=int, default=64, help="that poll each of the two roles (default 64)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two questions of a client (1)")
    parser.add_argument("--pairs", type=int, default=60, help="of samples, one with and one without clients (60)")
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at for a sample (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the raw result goes")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 where throughput is below {TARGET:g}")
    return parser.parse_args(argv)


class Clients:
    """The process that polls, between :meth:`go` and :meth:`stop`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def go(self) -> None:
        self._tell("go")

    def stop(self) -> int:
        """How many answers came."""
        self._tell("stop")
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        self.seconds += found["seconds"]
        self.failed += found["failed"]
        return len(found["seconds"])

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()


@contextmanager
def clients(number: int, interval_s: float, ports: list[int]) -> Iterator[Clients]:
    script = Path(__file__).with_name("pollers.py")
    argv = [sys.executable, str(script), str(number), str(interval_s), *map(str, ports)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Clients(process)
        finally:
            process.kill()


def sample(one: Pair, rooms: int) -> dict[str, float]:
    """``rooms_per_s``: of decode's loop. ``cpu_s``: of both roles' processes, per room. ``rooms``: as many."""
    sent, arrived = one.run(rooms)
    done = len(arrived.seconds)
    return {"rooms_per_s": done / arrived.wall_s, "cpu_s": (sent.cpu_s + arrived.cpu_s) / done, "rooms": done}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    pairs: list[dict[str, dict[str, float]]] = []
    with Nursery() as nursery, pair(nursery, "ours", options.transport, options.cell, 0.0005) as one:
        ports = [role.call("listen") for role in (one.prefill, one.decode)]
        rooms = Size(options.seconds).warm_up(lambda rooms: one.run(rooms)[1], options.cell.in_flight)
        with clients(options.clients, options.interval, ports) as polling:
            for number in range(options.pairs):
                found = {}
                # The one that comes first changes: what drifts meets both alike.
                for polled in (False, True) if number % 2 else (True, False):
                    if polled:
                        polling.go()
                    found["polled" if polled else "alone"] = sample(one, rooms)
                    if polled:
                        found["polled"]["questions"] = polling.stop()
                pairs.append(found)
        one.verify()
    return {
        "machine": report.machine(),
        "options": {name: str(value) for name, value in vars(options).items()},
        "pairs": pairs,
        "answer_seconds": polling.seconds,
        "failed": polling.failed,
    }


def ratio(result: dict[str, Any], what: str) -> tuple[float, float]:
    """Polled by alone: the median over the pairs, and its standard error from their spread."""
    found = [pair["polled"][what] / pair["alone"][what] for pair in result["pairs"]]
    spread = statistics.stdev(found) if len(found) > 1 else float("nan")
    # Of a median, where the ratios are about normal.
    return statistics.median(found), 1.2533 * spread / len(found) ** 0.5


def cpu_of_an_answer(result: dict[str, Any]) -> float:
    """CPU seconds that the roles spent on each answer, beyond what the rooms took."""
    pairs = result["pairs"]
    extra = sum((one["polled"]["cpu_s"] - one["alone"]["cpu_s"]) * one["polled"]["rooms"] for one in pairs)
    return extra / sum(one["polled"]["questions"] for one in pairs)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, 1 where --check was given and the target is missed, or a question failed."""
    options = arguments(argv)
    result = measure(options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result) + "\n")
    throughput, cpu = ratio(result, "rooms_per_s"), ratio(result, "cpu_s")
    seconds = result["answer_seconds"]
    percentiles = statistics.quantiles(seconds, n=100, method="inclusive")
    number, rate = options.clients, 2 * options.clients / options.interval
    print(f"{number} clients on each role, {rate:.0f} questions/s in all; {options.cell} over {options.transport}")
    print(f"rooms/s, polled / alone: {throughput[0]:.4f} +- {throughput[1]:.4f} of {len(result['pairs'])} pairs")
    each = cpu_of_an_answer(result)
    share = each * options.clients / options.interval
    print(f"CPU of an answer: {each * 1e6:.0f} us, so that the clients of a role take {share:.2%} of a core")
    print(f"CPU per room of both roles, polled / alone: {cpu[0]:.4f} +- {cpu[1]:.4f}")
    print(
        f"{len(seconds)} answers: median {percentiles[49] * 1e3:.1f} ms, p99 {percentiles[98] * 1e3:.1f} ms, "
        f"slowest {max(seconds) * 1e3:.1f} ms; {len(result['failed'])} failed"
    )
    return 1 if result["failed"] or (options.check and throughput[0] < TARGET) else 0


if __name__ == "__main__":
    sys.exit(main())
