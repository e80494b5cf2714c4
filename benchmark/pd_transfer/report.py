"""The result: its raw form, its table, and the targets it must meet."""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pd_transfer.geometry import Cell
from pd_transfer.measure import Sample

# (transport or None for each, cell, what, at least this times upstream's)
TARGETS: tuple[tuple[str | None, str, str, float], ...] = (
    (None, "64/1", "rooms_per_s", 4.0),
    (None, "256/1", "rooms_per_s", 7.0),
    ("shm", "16/64", "rooms_per_s", 3.0),
    ("shm", "16/512/adjacent", "mb_per_s", 2.0),
)
FLOOR = 1.0
METRICS = ("rooms_per_s", "mb_per_s", "p50_s", "p99_s", "prefill_cpu_s", "decode_cpu_s", "resting_cores")


@dataclass
class Result:
    """``samples``: one dictionary per sample. ``memcpy``: MB/s per cell. ``idle``: CPU seconds of idle pairs."""

    machine: dict[str, Any]
    options: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    memcpy: dict[str, dict[str, float]] = field(default_factory=dict)
    idle: list[dict[str, Any]] = field(default_factory=list)

    def add(self, transport: str, cell: Cell, side: str, repetition: int, sample: Sample) -> None:
        entry = {"transport": transport, "cell": str(cell), "side": side, "repetition": repetition}
        self.samples.append({**entry, "load_average": os.getloadavg()[0], **sample.row()})
        rate = f"{sample.rooms_per_s:.1f} rooms/s, {sample.mb_per_s:.0f} MB/s"
        print(
            f"{transport} {cell} #{repetition + 1} {side}: {rate} ({sample.rooms} in {sample.wall_s:.1f} s)",
            file=sys.stderr,
        )

    def medians(self) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
        """(transport, cell) -> side -> metric -> median over the repetitions, in the order they were measured."""
        found: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
        for sample in self.samples:
            found.setdefault((sample["transport"], sample["cell"]), {}).setdefault(sample["side"], []).append(sample)
        return {
            cell: {
                side: {metric: statistics.median(row[metric] for row in rows) for metric in METRICS}
                for side, rows in sides.items()
            }
            for cell, sides in found.items()
        }

    def ratios(self) -> dict[tuple[str, str], dict[str, float]]:
        """(transport, cell) -> metric -> median of ours / upstream, each from the two samples of one repetition.

        They were taken in turn, so that another load on the machine slowed both.
        """
        pairs: dict[tuple[str, str], dict[int, dict[str, dict[str, Any]]]] = {}
        for sample in self.samples:
            repetitions = pairs.setdefault((sample["transport"], sample["cell"]), {})
            repetitions.setdefault(sample["repetition"], {})[sample["side"]] = sample
        return {
            cell: {
                metric: statistics.median(pair["ours"][metric] / pair["upstream"][metric] for pair in complete)
                for metric in METRICS
            }
            for cell, repetitions in pairs.items()
            if (complete := [pair for pair in repetitions.values() if {"ours", "upstream"} <= set(pair)])
        }


def machine() -> dict[str, Any]:
    with open("/proc/cpuinfo") as info:
        models = {line.partition(":")[2].strip() for line in info if line.startswith("model name")}
    versions = {name: importlib.metadata.version(name) for name in ("nixl", "sglang", "sglang-pd")}
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "cpu": ", ".join(sorted(models)) or "unknown", "versions": versions}


def write(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(vars(result), indent=1, default=str) + "\n")


def markdown(result: Result) -> str:
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{machine['cores']} cores ({machine['cpu']}); {versions}; medians of {result.options['repetitions']}",
        "",
        "| transport | W/P | side | rooms/s | MB/s | p50 ms | p99 ms | prefill CPU ms/room | decode CPU ms/room "
        "| cores at rest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios = result.ratios()
    for (transport, cell), sides in result.medians().items():
        for side, found in sides.items():
            lines.append(
                f"| {transport} | {cell} | {side} | {found['rooms_per_s']:.0f} | {found['mb_per_s']:.0f} "
                f"| {found['p50_s'] * 1e3:.2f} | {found['p99_s'] * 1e3:.2f} | {found['prefill_cpu_s'] * 1e3:.2f} "
                f"| {found['decode_cpu_s'] * 1e3:.2f} | {found['resting_cores']:.2f} |"
            )
        if ratio := ratios.get((transport, cell)):
            lines.append(
                f"| {transport} | {cell} | **ours / upstream** | "
                + " | ".join(f"**{ratio[metric]:.2f}x**" for metric in METRICS)
                + " |"
            )
    if result.memcpy:
        lines += ["", "| memcpy of W/P | contiguous MB/s | by page MB/s |", "|---|---|---|"]
        lines += [
            f"| {cell} | {found['contiguous']:.0f} | {found['by page']:.0f} |" for cell, found in result.memcpy.items()
        ]
    if result.idle:
        lines += ["", "| idle pair | side | over s | prefill CPU s | decode CPU s |", "|---|---|---|---|---|"]
        lines += [
            f"| {row['transport']} | {row['side']} | {row['seconds']:g} | {row['prefill']:.2f} | {row['decode']:.2f} |"
            for row in result.idle
        ]
    return "\n".join(lines)


def missed(result: Result) -> list[str]:
    """Targets that the result misses, each in a line; those of cells or sides it lacks are not judged."""
    found = []
    for (transport, cell), ratios in result.ratios().items():
        wanted = [("rooms_per_s", FLOOR)]
        wanted += [(metric, least) for where, of, metric, least in TARGETS if of == cell and where in (None, transport)]
        for metric, least in wanted:
            if ratios[metric] < least:
                found.append(f"{transport} {cell}: {metric} is {ratios[metric]:.2f}x upstream's, wanted {least:g}x")
    by_side = {(row["transport"], row["side"]): row["prefill"] + row["decode"] for row in result.idle}
    for (transport, side), used in by_side.items():
        if side == "ours" and used > by_side.get((transport, "upstream"), used):
            found.append(f"{transport} idle pair: {used:.2f} s of CPU, more than upstream's")
    return found
