"""One scenario on a cluster of its own: undisturbed, disturbed, and asked once more."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pd_restarts import records, rooms
from pd_restarts.deployment import Deployment
from pd_restarts.load import Load, Shape
from pd_restarts.records import Key, Record, Summary
from pd_restarts.resources import growth
from pd_restarts.scenarios import LEAD_S, TAIL_S, Scenario

SYSTEMS: Mapping[str, Mapping[str, str]] = {"ours": {}, "upstream": {"SGLANG_PD_RELIABLE": "0"}}
WARM_UPS = 8
AFTERWARDS = 8


def measure(
    scenario: Scenario, system: str, shape: Shape, home: Path, model: Path, gateway_args: str = ""
) -> dict[str, Any]:
    """The result of one scenario with one system, as it stands in the JSON file.

    Raises ``RuntimeError`` where the cluster does not start, ``ValueError`` where it fails undisturbed.
    """
    env = {**SYSTEMS[system], **scenario.env}
    with Deployment(home, model, env, (*scenario.up_flags, f"--gateway-args={gateway_args}")) as site:
        load = Load(site.gateway, site.plan.served_model_name, shape)
        load.once(range(shape.pool, shape.pool + WARM_UPS))
        undisturbed = load.once(range(shape.pool))
        expected = records.reference(undisturbed)
        normal = max(one.seconds for one in undisturbed)
        tell(f"undisturbed: {len(undisturbed)} requests, slowest {normal:.2f} s")
        counters = site.gateway_counters()
        load.records.clear()
        site.begin()
        problem = ""
        with site.watched(), load.going_on():
            time.sleep(LEAD_S)
            try:
                for step in scenario.steps:
                    step.run(site)
            except (RuntimeError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
                site.note(problem)
            time.sleep(TAIL_S)
        disturbed = list(load.records)
        summary = records.summarize(disturbed, expected, normal)
        tell(told(summary))
        after = afterwards(load, expected, normal)
        tell(f"afterwards: {told(after)}")
        servers = site.servers()
        at_end = site.gateway_counters()
        return {
            "normal": _normal(undisturbed),
            "summary": asdict(summary),
            "after": asdict(after),
            "events": site.events,
            "problem": problem,
            "servers": servers,
            "failed_rooms": rooms.total(servers, "logged"),
            "upstream_counters": rooms.total(servers, "upstream"),
            "disagreements": rooms.disagreements(servers),
            "gateway": {
                name: at_end[name] - counters.get(name, 0) for name in at_end if at_end[name] != counters.get(name, 0)
            },
            "reference": digest(expected),
            "wrong": records.details(disturbed, expected, summary.bound, site.zero),
            "timeline": records.timeline(disturbed, site.zero),
            **site.results,
            **_grown(site.results.get("resources")),
        }


def afterwards(load: Load, expected: Mapping[Key, tuple[int, ...]], normal: float) -> Summary:
    """Requests once nothing is done any more."""
    return records.summarize(load.once(range(min(AFTERWARDS, load.shape.pool))), expected, normal)


def told(summary: Summary) -> str:
    """A line for whoever watches."""
    wrong = {what: getattr(summary, what) for what in ("failed", "stuck", "slow", "unequal", "broken", "silent")}
    found = ", ".join(f"{count} {what}" for what, count in wrong.items() if count) or "none failed, stuck or unequal"
    why = f" ({', '.join(f'{count}x {what}' for what, count in summary.failures.items())})" if summary.failures else ""
    return f"{summary.requests} requests, slowest {summary.slowest:.2f} s of {summary.bound:.2f}: {found}{why}"


def digest(expected: Mapping[Key, tuple[int, ...]]) -> str:
    """Equal where all answers are."""
    import hashlib

    return hashlib.sha256(repr(sorted(expected.items())).encode()).hexdigest()[:16]


def _normal(undisturbed: list[Record]) -> dict[str, float]:
    seconds = sorted(one.seconds for one in undisturbed)
    return {"requests": len(seconds), "median": round(seconds[len(seconds) // 2], 3), "slowest": round(seconds[-1], 3)}


def _grown(measured: list[dict[str, Any]] | None) -> dict[str, Any]:
    """By prefill server: what it holds more of at the end than before."""
    if not measured:
        return {}
    found = {}
    for name in dict.fromkeys(one["server"] for one in measured):
        of = [
            {k: v for k, v in one.items() if k not in ("after", "server")} for one in measured if one["server"] == name
        ]
        found[name] = growth(of[0], of[-1])
    return {"grown": found}


def tell(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)
