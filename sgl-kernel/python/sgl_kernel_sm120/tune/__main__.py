"""``python -m sgl_kernel_sm120.tune``: see :mod:`sgl_kernel_sm120.tune`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from sgl_kernel_sm120.sparse_mla import calibration
from sgl_kernel_sm120.sparse_mla.launch import BLOCK_T, NUM_STAGES, NUM_WARPS, AttendLaunch, LaunchError
from sgl_kernel_sm120.sparse_mla.split import DEFAULT_TARGET_CTAS, Machine, scratch_bytes
from sgl_kernel_sm120.tune import measure
from sgl_kernel_sm120.tune.fit import describe, fit
from sgl_kernel_sm120.tune.show import ROWS, choices, table

# What --show assumes of a card that is not here: an RTX PRO 6000.
ASSUMED_MULTIPROCESSORS = 188
ASSUMED_MAJOR = 12


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 1 where a table is wrong or there is no GPU to calibrate on."""
    options = _arguments(arguments)
    try:
        launch = AttendLaunch(options.block_t, options.num_warps, options.num_stages)
        return _show(options, launch) if options.show else _calibrate(options, launch)
    except (LaunchError, calibration.CalibrationError) as error:
        print(error, file=sys.stderr)
        return 1


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sgl_kernel_sm120.tune", description="Calibrate the sparse decode's splits.")
    default = AttendLaunch()
    parser.add_argument("--show", action="store_true", help="print choices and predicted makespans; needs no GPU")
    parser.add_argument("--table", type=Path, help="with --show: costs from this table and not the assumed ones")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="with --show: batch sizes (1 to 96)")
    parser.add_argument("--heads", type=int, default=16, help="per rank (16, tensor parallel 4)")
    parser.add_argument("--target-ctas", type=int, default=DEFAULT_TARGET_CTAS)
    parser.add_argument("--block-t", type=int, default=default.block_t, choices=BLOCK_T)
    parser.add_argument("--num-warps", type=int, default=default.num_warps, choices=NUM_WARPS)
    parser.add_argument("--num-stages", type=int, default=default.num_stages, choices=NUM_STAGES)
    parser.add_argument("--out", type=Path, help="where the table goes (sparse_decode_<GPU>.json)")
    return parser.parse_args(arguments)


def _show(options: argparse.Namespace, launch: AttendLaunch) -> int:
    if options.table:
        kept = calibration.read(options.table)
        machine, launch = kept.machine(), kept.launch
        print(f"{kept.gpu}, microseconds: {describe(kept.costs)}; median error {kept.error:.1%}")
    else:
        machine = Machine(ASSUMED_MULTIPROCESSORS, launch.resident(ASSUMED_MAJOR))
        print(f"assumed, in tiles of {launch.block_t} keys: {describe(machine.costs)}; not measured")
    print(
        f"{machine.multiprocessors} multiprocessors, {machine.resident} programs each, {options.heads} heads, at most "
        f"{options.target_ctas} programs, {scratch_bytes(options.target_ctas)} bytes of scratch"
    )
    found = list(choices(machine, options.heads, launch.block_t, options.target_ctas, options.rows))
    print(table(found))
    worse = [one for one in found if one.ours[1] > min(one.reach[1], one.flashinfer[1])]
    print(f"{len(found) - len(worse)} of {len(found)} choices are no worse than either rule")
    return 0


def _calibrate(options: argparse.Namespace, launch: AttendLaunch) -> int:
    if not torch.cuda.is_available():
        print("not measured: no GPU here; on a card:\n  python -m sgl_kernel_sm120.tune --out TABLE.json")
        return 1
    properties = torch.cuda.get_device_properties(0)
    capability = properties.major * 10 + properties.minor
    taken = []
    for sample in measure.samples(launch, options.heads, options.target_ctas):
        taken.append(sample)
        print(f"{sample.work} splits={sample.splits}: {sample.microseconds:.1f} us", flush=True)
    costs, error = fit(taken, properties.multi_processor_count, launch.resident(properties.major))
    written = calibration.Calibration(
        gpu=properties.name,
        capability=capability,
        multiprocessors=properties.multi_processor_count,
        launch=launch,
        costs=costs,
        error=error,
        kernel=calibration.digest(launch, capability),
    )
    path = options.out or Path(f"sparse_decode_{properties.name.replace(' ', '_')}.json")
    calibration.write(path, written)
    print(f"microseconds: {describe(costs)}; median error {error:.1%}; written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
