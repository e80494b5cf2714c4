"""Sparse decode on a GPU: correct, replayed bit for bit, and its time beside the floor and upstream's kernels.

python benchmark/kernels/bench_sparse_decode.py --check    # on a card; prints "not measured" without one
"""

from __future__ import annotations

import argparse
import csv
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.extend(str(Path(__file__).resolve().parents[i] / folder) for i, folder in ((0, ""), (2, "sgl-kernel/python")))

import sparse_decode_speed as speed
from index_k_speed import copy_rate
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch

RESULTS = Path(__file__).parent / "results"
FASTER = 5.0  # than upstream's Triton kernel, in every row


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 1 where --check was given and something is wrong, too slow or could not be measured."""
    options = _arguments(argv)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}")
    if not torch.cuda.is_available():
        print("not measured (no GPU here); on a card:")
        print("  python benchmark/kernels/bench_sparse_decode.py --check")
        return 1 if options.check else 0
    launch = AttendLaunch()
    name = torch.cuda.get_device_name()
    error = speed.worst_error(options.heads, launch)
    print(f"{name}: largest error against float64 {error:.1e} (allowed {speed.TOLERANCE:.0e})")
    differing = speed.differing_replays(options.heads, launch)
    print(f"{differing} of {speed.REPLAYS} replays of a captured graph differ")
    good = error <= speed.TOLERANCE and not differing
    if options.only != "replay":
        rows = _speed(options, name, launch)
        good = good and fast(rows)
    return 1 if options.check and not good else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16, help="per rank (16, tensor parallel 4)")
    parser.add_argument("--only", choices=("replay",), help="correctness and replays, no times")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the raw results")
    parser.add_argument("--check", action="store_true", help="exit with 1 where something is wrong or too slow")
    return parser.parse_args(argv)


def _speed(options: argparse.Namespace, name: str, launch: AttendLaunch) -> list[speed.Row]:
    copy = copy_rate()
    print(f"copy {copy:.0f} GB/s")
    rows = []
    for row in speed.measure(copy, options.heads, launch):
        if isinstance(row, str):
            print(row)
            continue
        rows.append(row)
        print(
            f"{row.kernel:20s} {row.layer:5s} {row.rows:3d} rows at {row.context:6d}  {row.splits:3d} splits  "
            f"{row.microseconds:9.1f} us  {row.gb_per_s:6.0f} GB/s  {row.of_floor:6.1%} of the floor",
            flush=True,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"sparse_decode_{name.replace(' ', '_')}.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
    return rows


def fast(rows: Sequence[speed.Row]) -> bool:
    """Whether ours takes at most a fifth of upstream's Triton kernel's time, in every case, which must all be there."""
    times = {(row.kernel, row.layer, row.rows, row.context): row.microseconds for row in rows}
    ours = [key[1:] for key in times if key[0] == "ours"]
    return bool(ours) and all(times.get(("upstream triton", *key), 0.0) >= FASTER * times["ours", *key] for key in ours)


if __name__ == "__main__":
    sys.exit(main())
