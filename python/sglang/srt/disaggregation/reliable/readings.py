"""Hands the numbers of a scheduler's process to the process that serves ``/metrics``: whole readings, one file each.

``prometheus_client`` would hand on one number after the other, and a scrape fall in between. A file that is replaced is
read as it was or as it is, never in between; so what was consistent when it was read from the ledger is so in a scrape.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.srt.disaggregation.reliable import families
from sglang.srt.disaggregation.reliable.families import FAMILIES, Family
from sglang_pd import environ

PATTERN = "pd-*.json"

Sample = tuple[tuple[str, ...], Any]
"""Label values, and a number; of a histogram the rooms per bucket, the infinite one last, then the sum."""


@dataclass(frozen=True)
class Reading:
    """The samples of every family by its name, of one process. ``at``: monotonic seconds, the same for all processes of
    the machine."""

    role: str
    at: float
    samples: dict[str, list[Sample]]


def folder() -> Path:
    """Where upstream's processes hand on their metrics. Raises ``RuntimeError`` where they do not."""
    path = environ.upstream("PROMETHEUS_MULTIPROC_DIR")
    if path is None:
        raise RuntimeError("PROMETHEUS_MULTIPROC_DIR is not set: metrics are off")
    return Path(path)


def write(where: Path, reading: Reading) -> None:
    """Replace this process's last reading in the folder ``where``."""
    name = f"pd-{reading.role}-{os.getpid()}"
    draft = where / f"{name}.tmp"
    draft.write_text(json.dumps({"role": reading.role, "at": reading.at, "samples": reading.samples}))
    draft.replace(where / f"{name}.json")


def read_all(where: Path) -> list[Reading]:
    """The last reading of every process that lives."""
    found = []
    for path in where.glob(PATTERN):
        # A process that ended may take its folder with it.
        with contextlib.suppress(FileNotFoundError):
            if _lives(int(path.stem.rpartition("-")[2])):
                content = json.loads(path.read_text())
                samples = {
                    name: [(tuple(labels), value) for labels, value in found]
                    for name, found in content["samples"].items()
                }
                found.append(Reading(content["role"], content["at"], samples))
    return found


def merge(found: Iterable[Reading], now: float) -> dict[Family, dict[tuple[str, ...], Any]]:
    """One reading of the whole server, at the monotonic time ``now``: by family and label values."""
    merged: dict[Family, dict[tuple[str, ...], Any]] = {family: {} for family in FAMILIES}
    for reading in found:
        for family in FAMILIES:
            for labels, value in _at(reading, family, now):
                known = merged[family].get(labels)
                merged[family][labels] = value if known is None else _both(family, known, value)
    return merged


def _at(reading: Reading, family: Family, now: float) -> list[Sample]:
    """The samples as they are ``now``: an age has grown since the reading, if there is something to age."""
    since = max(0.0, now - reading.at)
    if family is families.READING_AGE:
        return [((reading.role,), since)]
    samples = reading.samples[family.name]
    if family is families.OLDEST:
        live = dict(reading.samples[families.LIVE.name])
        return [(labels, age + since if live[labels] else 0.0) for labels, age in samples]
    if family is families.QUARANTINE_AGE:
        pages = dict(reading.samples[families.QUARANTINED.name])
        return [(labels, age + since if pages[labels] else 0.0) for labels, age in samples]
    return samples


def _both(family: Family, one: Any, other: Any) -> Any:
    if family.kind == "histogram":
        return [a + b for a, b in zip(one, other, strict=True)]
    return {"sum": lambda: one + other, "max": lambda: max(one, other), "min": lambda: min(one, other)}[family.across]()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
