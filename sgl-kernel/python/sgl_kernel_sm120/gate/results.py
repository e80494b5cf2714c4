"""The kept table: CSV, one row per configuration and architecture, and whether it speaks of the present source."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from sgl_kernel_sm120.gate.arch import Arch
from sgl_kernel_sm120.gate.config import KernelConfig
from sgl_kernel_sm120.gate.verdict import Row

COLUMNS = [field.name for field in fields(Row)]


def write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [
            Row(**{name: value if name in _TEXT else int(value) for name, value in row.items()})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


_TEXT = ("config", "arch", "digest", "failures")


def out_of_date(rows: Sequence[Row], configs: Sequence[KernelConfig], archs: Sequence[Arch]) -> list[str]:
    """What a kept table lacks, has too much, or measured on other source; empty when it is the present one."""
    kept = {(row.config, row.arch): row.digest for row in rows}
    present = {(config.name, arch.name): config.digest(arch.name) for config in configs for arch in archs}
    return (
        [f"{name} on {arch} is missing" for name, arch in sorted(present.keys() - kept.keys())]
        + [f"{name} on {arch} is no configuration" for name, arch in sorted(kept.keys() - present.keys())]
        + [f"{name} on {arch} changed" for name, arch in sorted(present.keys() & kept.keys())
           if present[name, arch] != kept[name, arch]]
    )  # fmt: skip


def show(rows: Sequence[Row]) -> str:
    """The table as text."""
    heads = ["configuration", "arch", "warps", "stages", "shared", "registers", "spilled", "matrix", "blocks/SM", ""]
    cells = [
        [r.config, r.arch, r.warps, r.stages, r.shared, r.registers, r.spilled, r.matrix, r.blocks, r.failures or "ok"]
        for r in rows
    ]
    lines = [heads, *([str(cell) for cell in line] for line in cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
