"""docs/restarts.md from the raw result; pure.

python -m pd_restarts.document RESULT.json > docs/restarts.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Results = Mapping[str, Any]
SYSTEMS = ("ours", "upstream")
NOTHING = "-"

INTRO = """# Restarts

Generated from [benchmark/pd_restarts](../benchmark/pd_restarts/README.md)'s raw result by its `document.py`.

Two prefills, two decodes and the gateway of `sglang-pd up`, a tiny model, {sessions} agentic sessions at a time, of
{rounds} rounds with growing prefixes, not streamed{streamed}. Each scenario and each side ("upstream" is
`SGLANG_PD_RELIABLE=0`, behind the same gateway) had a cluster of its own: first the sessions ran undisturbed, then
again and again while the scenario happened.

{machine}.
Other work ran on it meanwhile: the counts are what this page is about, the seconds vary.

- **failed**: requests that a client saw fail. **stuck**: no answer within {patience:g} s. **slow**: answered later
  than the slowest undisturbed request + 10 s. **unequal**: other token ids than undisturbed.
- **afterwards**: served of the {after} requests that were sent once all was over.
"""


def page(results: Results) -> str:
    """The whole page."""
    return f"{_intro(results)}\n{tables(results)}\n"


def _intro(results: Results) -> str:
    first = next(iter(_each(results)), None)
    if first is None:
        return "# Restarts\n\nNothing was measured.\n"
    about, load = first["about"], first["about"]["load"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("sglang", "nixl", "smg", "torch") if name in about)
    machine = f"{about['cores']} cores, {about['memory_gib']} GiB, no GPU; {versions}"
    streamed = f" (but for {load['streamed']:.0%})" if load["streamed"] else ""
    sizes = {"sessions": load["at_a_time"], "rounds": load["rounds"], "patience": load["patience_s"]}
    return INTRO.format(**sizes, streamed=streamed, machine=machine, after=first["after"]["requests"])


def _each(results: Results) -> list[Mapping[str, Any]]:
    return [of for scenario in results["scenarios"].values() for of in scenario["systems"].values()]


def tables(results: Results) -> str:
    """What clients saw, the rooms that failed, and the figures that some scenarios have of their own."""
    parts = ["## What clients saw", clients(results), "## Rooms that failed, by reason", failed_rooms(results)]
    extra = [text for text in (scheduler(results), joined(results), held(results), references(results)) if text]
    return "\n\n".join([*parts, *extra])


def clients(results: Results) -> str:
    rows = [["Scenario", "Side", "requests", "failed", "stuck", "slow", "unequal", "slowest / bound (s)", "afterwards"]]
    for title, side, of in _rows(results):
        one, after = of["summary"], of["after"]
        counts = [str(one[what]) for what in ("requests", "failed", "stuck", "slow", "unequal")]
        rows.append(
            [
                title,
                side,
                *counts,
                f"{one['slowest']:.1f} / {one['bound']:.1f}",
                f"{after['served']}/{after['requests']}",
            ]
        )
    return table(rows)


def failed_rooms(results: Results) -> str:
    rows = [["Scenario", "Side", "in the log", "log and metrics", "gateway's retries"]]
    for title, side, of in _rows(results):
        if side == "ours":
            log, agree = of["failed_rooms"], "; ".join(of["disagreements"]) or "agree"
        else:
            log, agree = of["upstream_counters"], "counters only"
        retries = sum(count for name, count in of["gateway"].items() if "worker_retries_total" in name)
        counts = ", ".join(f"{count} {reason}" for reason, count in log.items()) or "none"
        # It counts a retry for each of the two servers of a try.
        rows.append([title, side, counts, agree, f"{retries / 2:g}"])
    return table(rows)


def scheduler(results: Results) -> str:
    rows = [
        [
            "Side",
            "not ready after (s)",
            "gateway stops after (s)",
            "last decode error after (s)",
            "its server ended after (s)",
        ]
    ]
    for _, side, of in _rows(results):
        if found := of.get("dead_scheduler"):
            keys = ("not ready", "gateway stops", "last decode error", "server ended")
            rows.append([side, *(f"{found[key]:.1f}" if key in found else NOTHING for key in keys)])
    return "## A prefill's scheduler is killed\n\n" + table(rows) if len(rows) > 1 else ""


def joined(results: Results) -> str:
    parts = []
    for _, side, of in _rows(results):
        for answer in of.get("joined", [])[:1]:
            decode = answer["decode"]
            parts.append(
                f"- {side}: decode answers {decode['status']} after {decode['seconds']} s: `{_sentence(decode)}`"
            )
    return "## A decode with other pages joins\n\n" + "\n".join(parts) if parts else ""


def _sentence(answer: Mapping[str, Any]) -> str:
    """What an error says in the end, without what upstream puts around it."""
    try:
        said = json.loads(answer["said"])["message"]
    except (ValueError, KeyError, TypeError):
        said = answer["said"]
    mark = f"{answer['reason']}: "
    return mark + said.rpartition(mark)[2] if answer["reason"] else said


def held(results: Results) -> str:
    rows = [["Side", "Server", "after restarts", "descriptors", "threads", "agents", "rooms", "resident (MiB)"]]
    for _, side, of in _rows(results):
        for one in of.get("resources", []):
            keys = ("descriptors", "threads", "agents", "rooms", "rss_mib")
            cells = [NOTHING if one[key] is None else str(one[key]) for key in keys]
            rows.append([side, one["server"], str(one["after"]), *cells])
    return "## What a prefill holds\n\n" + table(rows) if len(rows) > 1 else ""


def references(results: Results) -> str:
    found = {of["reference"] for of in _each(results)}
    if not found:
        return ""
    equal = "had the same answers" if len(found) == 1 else f"had {len(found)} different sets of answers"
    return f"The undisturbed runs of all {len(_each(results))} clusters above {equal}, token by token."


def _rows(results: Results) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(title, side, result), a scenario's sides together."""
    return [
        (scenario["systems"][side]["title"], side, scenario["systems"][side])
        for scenario in results["scenarios"].values()
        for side in SYSTEMS
        if side in scenario["systems"]
    ]


def table(rows: list[list[str]]) -> str:
    """Markdown; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))
