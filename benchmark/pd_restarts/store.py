"""The raw result: a JSON file to which each run adds its scenarios."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pd_restarts.load import Shape
from pd_restarts.scenarios import Scenario, Sizes, scenarios

Results = dict[str, Any]


def load(path: Path | None) -> Results:
    """What is there already; an empty result where nothing is."""
    if path is not None and path.exists():
        return json.loads(path.read_text())
    return {"scenarios": {}}


def add(results: Results, scenario: Scenario, system: str, result: Results, shape: Shape, sizes: Sizes) -> None:
    """Put ``result`` in the place of an earlier one of that scenario and system; scenarios stay in their order."""
    entry = results["scenarios"].setdefault(scenario.name, {"systems": {}})
    about_ = about() | {"load": asdict(shape), "sizes": asdict(sizes)}
    entry["systems"][system] = {"title": scenario.title, "about": about_, **result}
    order = list(scenarios(sizes))
    results["scenarios"] = dict(sorted(results["scenarios"].items(), key=lambda one: order.index(one[0])))


def save(results: Results, path: Path | None) -> None:
    if path is not None:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(results, indent=1) + "\n")
        fresh.replace(path)


def about() -> dict[str, Any]:
    names = ("sglang", "nixl", "torch", "smg")
    return {
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1),
        "machine": platform.machine(),
        "gpu": "none: served on the CPU",
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }
