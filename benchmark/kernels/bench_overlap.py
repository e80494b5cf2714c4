"""Overlap on side streams under stress, on a GPU: no stall of a stream may change a bit of what is computed or stored.

python benchmark/kernels/bench_overlap.py --check    # on a card; prints "not measured" without one
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.extend(str(Path(__file__).resolve().parents[i] / folder) for i, folder in ((0, ""), (2, "sgl-kernel/python")))

import overlap_layers
import overlap_stress as stress

RESULTS = Path(__file__).parent / "results"
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 65, 72, 80, 88, 96)


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 1 where --check was given and a bit differed, or nothing could be measured."""
    options = _arguments(argv)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    if not torch.cuda.is_available():
        print("not measured (no GPU here); on a card:")
        print("  python benchmark/kernels/bench_overlap.py --check")
        return 1 if options.check else 0
    # Where streams share cuBLAS's workspace it may choose differently; read when cuBLAS is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "1")
    name = torch.cuda.get_device_name()
    found = list(_run(options))
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / f"overlap_{name.replace(' ', '_')}.csv", found)
    print(verdict(name, found))
    return 1 if options.check and not all(one.good for one in found) else 0


def _run(options: argparse.Namespace) -> Iterable[stress.Outcome]:
    from sglang.srt.plugins import load_plugins

    load_plugins()  # bf16 index keys and our attention where their variables are set
    overlap_layers.settle("cuda")
    cycles = int(options.stall_us * torch.cuda.get_device_properties(0).clock_rate / 1000)
    streams = [torch.cuda.Stream() for _ in stress.NAMES]
    layers = overlap_layers.Layers(overlap_layers.Sizes(), max(options.batches), streams, "cuda", options.seed)
    for rows in sorted(options.batches, reverse=True):
        for one in stress.outcomes(layers, streams, rows, options.replays, cycles):
            print(
                f"{one.rows:3d} rows, {one.stalled:14s} held up: {one.differing} of {one.replays} replays and "
                f"{one.buffers} buffers differ",
                flush=True,
            )
            yield one


def write(path: Path, found: list[stress.Outcome]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(asdict(found[0])), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(one) for one in found)


def verdict(name: str, found: list[stress.Outcome]) -> str:
    replays = sum(one.replays for one in found)
    bad = [f"{one.rows} rows with {one.stalled} held up" for one in found if not one.good]
    return f"{name}: {replays} replays, " + (f"DIFFERENT in {'; '.join(bad)}" if bad else "every bit the same")


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="rows of the captured graphs")
    parser.add_argument("--replays", type=int, default=10000, help="of each graph")
    parser.add_argument("--stall-us", type=float, default=200.0, help="microseconds that a stream is held up each time")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the raw results")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bit differs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
