"""bf16 index keys: recall against float64 on the CPU, and speed on a GPU where there is one.

python benchmark/kernels/bench_index_k.py                 # both; prints "not measured" for the speed without a GPU
python benchmark/kernels/bench_index_k.py --only speed --check
"""

from __future__ import annotations

import argparse
import csv
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

sys.path.extend(str(Path(__file__).resolve().parents[i] / folder) for i, folder in ((0, ""), (2, "sgl-kernel/python")))

import index_k_recall
import index_k_speed

RESULTS = Path(__file__).parent / "results"
SIZES = [2048, 8192, 32768, 131072]
# Of the rates measured in the same run.
DECODE_TARGET, PREFILL_TARGET = 0.85, 0.60


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 1 where --check was given and a target is missed or could not be measured."""
    options = _arguments(argv)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only in (None, "recall"):
        _recall(options)
    met = True
    if options.only in (None, "speed"):
        met = _speed(options)
    return 1 if options.check and not met else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("recall", "speed"), help="default: both")
    parser.add_argument("--keys", type=int, nargs="+", default=SIZES, help="numbers of keys for the recall")
    parser.add_argument("--queries", type=int, default=8, help="per number of keys and kind of data (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the raw results")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a speed target is missed")
    return parser.parse_args(argv)


def _recall(options: argparse.Namespace) -> None:
    start = time.monotonic()
    rows = []
    for row in index_k_recall.measure(options.keys, options.queries, options.seed):
        rows.append(row)
        turned = "with Hadamard" if row.hadamard else "without"
        print(
            f"{row.keys:7d} keys  {row.data:8s}  {turned:13s}  {row.format:4s}  "
            f"recall {row.recall:.4f}  least {row.least:.4f}",
            flush=True,
        )
    write(options.out / "index_k_recall.csv", rows)
    print(f"recall of the best {index_k_recall.TOP_K}, {time.monotonic() - start:.0f} s")


def _speed(options: argparse.Namespace) -> bool:
    """Measure and print; whether every target was met."""
    if not torch.cuda.is_available():
        print("speed: not measured (no GPU here); on a card:")
        print("  python benchmark/kernels/bench_index_k.py --only speed --check")
        return False
    name = torch.cuda.get_device_name()
    copy, matrix = index_k_speed.copy_rate(), index_k_speed.matrix_rate()
    print(f"{name}: copy {copy:.0f} GB/s, bf16 product {matrix:.0f} TFLOPS")
    error = index_k_speed.worst_error(index_k_speed.launches.defaults(torch.cuda.get_device_capability()[0]))
    print(f"largest error against float64: {error:.2e} (allowed {index_k_speed.TOLERANCE:.0e})")
    rows = []
    for row in index_k_speed.measure(copy, matrix):
        if isinstance(row, str):
            print(row)
            continue
        rows.append(row)
        print(
            f"{row.kernel:20s} {row.rows:5d} rows {row.keys:7d} keys  {row.milliseconds:9.4f} ms  "
            f"{row.gb_per_s:7.0f} GB/s  {row.tflops:6.1f} TFLOPS  {row.of_card:6.1%} of the card",
            flush=True,
        )
    write(options.out / f"index_k_speed_{name.replace(' ', '_')}.csv", rows)
    return error <= index_k_speed.TOLERANCE and met(rows)


def met(rows: Sequence[index_k_speed.Row]) -> bool:
    """Whether decode at 128k keys and all of prefill reach their parts of the card's rates."""
    decode = [row.of_card for row in rows if row.kernel == "decode bf16" and row.keys == 131072]
    prefill = [row.of_card for row in rows if row.kernel == "prefill bf16"]
    return bool(decode and prefill) and min(decode) >= DECODE_TARGET and min(prefill) >= PREFILL_TARGET


def write(path: Path, rows: Sequence[Any]) -> None:
    """The raw result as CSV: one row per measurement, columns named as the fields."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
