"""PD transfer at manager level: rooms/s, latency, CPU per room and MB/s of our classes and of upstream's, in turn.

python benchmark/pd_transfer/bench_pd_transfer.py --cells 64/1 --repetitions 1
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from harness.managers import Nursery
from pd_transfer import memcpy, report
from pd_transfer.geometry import Cell
from pd_transfer.measure import Size, idle, raw_samples, samples
from pd_transfer.pairs import SIDES, TRANSPORTS

CELLS = "1/1,64/1,256/1,16/64,16/512,16/512/adjacent"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=_cells, default=_cells(CELLS), help=f"W/P or W/P/adjacent (default {CELLS})")
    parser.add_argument("--transport", type=_names(TRANSPORTS), default=list(TRANSPORTS), help="shm,tcp (default both)")
    parser.add_argument("--sides", type=_names(SIDES), default=list(SIDES), help="ours,upstream (default both)")
    parser.add_argument("--repetitions", type=int, default=3, help="of every sample (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="aimed at for every sample (default 2)")
    parser.add_argument("--rooms", type=int, help="per sample, instead of --seconds")
    parser.add_argument(
        "--poll-ms", type=float, default=0.5, help="pause of the load's loop without news (default 0.5)"
    )
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="also the CPU time of idle pairs, over SECONDS")
    parser.add_argument("--no-raw", action="store_true", help="leave out raw NIXL and memcpy")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the raw result goes")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, 1 where a target is missed and --check was given, 2 where a room failed or arrived damaged."""
    options = arguments(argv)
    # NIXL announces every agent; its warnings stay.
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    result = report.Result(report.machine(), {name: value for name, value in vars(options).items() if name != "json"})
    failure = None
    try:
        with Nursery() as nursery:
            _measure_all(nursery, options, result)
    except (RuntimeError, TimeoutError) as error:
        failure = error
    # What was measured before a failure is worth having.
    print(report.markdown(result))
    if options.json:
        report.write(result, options.json)
    if failure is not None:
        print(f"failed: {failure}", file=sys.stderr)
        return 2
    missed = report.missed(result)
    for line in missed:
        print(f"missed: {line}")
    return 1 if options.check and missed else 0


def _measure_all(nursery: Nursery, options: argparse.Namespace, result: report.Result) -> None:
    for transport in options.transport:
        for cell in options.cells:
            _measure(nursery, options, transport, cell, result)
        if options.idle:
            for side in options.sides:
                used = idle(nursery, side, transport, options.idle, options.poll_ms / 1e3)
                result.idle.append({"transport": transport, "side": side, "seconds": options.idle, **used})


def _measure(nursery: Nursery, options: argparse.Namespace, transport: str, cell: Cell, result: report.Result) -> None:
    """The samples of a cell, its sides in turn: each repetition has one of each."""
    size = Size(options.seconds, options.rooms)
    for repetition in range(options.repetitions):
        found = samples(nursery, options.sides, transport, cell, size, options.poll_ms / 1e3)
        for side, sample in found.items():
            result.add(transport, cell, side, repetition, sample)
        if options.no_raw:
            continue
        for in_flight, sample in raw_samples(nursery, transport, cell, size).items():
            result.add(transport, cell, f"raw NIXL, {in_flight} in flight", repetition, sample)
    if not options.no_raw and transport == options.transport[0]:
        result.memcpy[str(cell)] = memcpy.megabytes_per_second(cell)


def _cells(text: str) -> list[Cell]:
    return [Cell.parse(part) for part in text.split(",")]


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
