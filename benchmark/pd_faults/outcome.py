"""The results as a table for people; pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

Results = Mapping[str, Mapping[str, Any]]


def table(results: Results) -> str:
    """Markdown, a row per figure and a column per side."""
    sides = list(next(iter(results.values())))
    rows = [["Fault", "Measured", *sides]]
    for name, of_side in results.items():
        figures = [ROWS[name](of_side[side]) for side in sides]
        rows += [[name, what, *(of[what] for of in figures)] for what in figures[0]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def seen(of: Mapping[str, Any]) -> str:
    reason = f", {of['reason']}" if of["reason"] else ""
    return f"{of['status']} after {of['seconds']:.2f} s{reason}"


def _foreign(of: Mapping[str, Any]) -> dict[str, str]:
    return {
        "a request before": seen(of["before"]),
        "the next request": seen(of["next"]),
        "/pd/ready of prefill": str(of["ready"]),
    }


def _prefill_abort(of: Mapping[str, Any]) -> dict[str, str]:
    return {
        "decode's answer": seen(of["decode"]),
        "prefill's answer": f"{of['prefill']['status']}",
        "the next request": seen(of["next"]),
    }


def _hung_decode(of: Mapping[str, Any]) -> dict[str, str]:
    ended = of["rooms_ended_s"]
    when = f"{len(ended)} of {len(ended) + of['rooms_not_ended']}"
    if ended:
        when += f" after {ended[0]:.1f} to {ended[-1]:.1f} s: {', '.join(of['reasons'])}"
    return {
        "the other's requests before": _loss(of["before"]),
        "the other's requests during": _loss(of["during"]),
        "median, during / before": f"{of['during']['median'] / of['before']['median']:.2f}",
        "the hung one's rooms end on prefill": when,
        "its next request, once it goes on": seen(of["next_of_the_hung_one"]),
    }


def _loss(of: Mapping[str, Any]) -> str:
    return f"{of['served']} of {of['asked']} served, median {of['median']:.2f} s, longest {of['longest']:.2f} s"


def _idle(of: list[Mapping[str, float]]) -> dict[str, str]:
    roles = ("prefill", "decode")
    cores = {role: statistics.mean(one[role] for one in of) for role in roles}
    spread = [sum(one.values()) for one in of]
    return {
        **{f"cores taken by {role}": f"{cores[role]:.4f}" for role in roles},
        "by both": f"{statistics.mean(spread):.4f} ({min(spread):.4f} to {max(spread):.4f})",
    }


ROWS: Mapping[str, Callable[[Any], dict[str, str]]] = {
    "foreign-frame": _foreign,
    "prefill-abort": _prefill_abort,
    "hung-decode": _hung_decode,
    "idle": _idle,
}
