"""Findings for people, in 80 columns, the one to begin with first; and for programs, as one JSON object. Pure."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any

from sglang_pd.cluster.words import duration
from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, RoomRef, Severity
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted, seconds

WIDTH = 80
SCHEMA = {"name": "sglang-pd/doctor", "version": 1}
# Of a finding that is not the first, so much.
SHORT_EVIDENCE, SHORT_ROOMS = 2, 2
_TITLES = {Severity.UNKNOWN: "NOT ENOUGH EVIDENCE"}


def to_data(case: Case, findings: Sequence[Finding]) -> dict[str, Any]:
    """As ``--json`` prints it; ``docs/doctor.md`` tells the schema."""
    return {
        "schema": SCHEMA,
        "at": case.at,
        "host": case.snapshot.host,
        "seconds": case.snapshot.seconds,
        "findings": [one.to_data() for one in findings],
        "not_known": case.missing,
        "targets": [_target_data(one) for one in case.views],
    }


def _target_data(view: View) -> dict[str, Any]:
    return {
        "name": view.name,
        "role": view.role,
        "url": view.server.url,
        "answers": view.answers,
        "started_at": view.started_at,
        "pids": [one.pid for one in view.server.processes or []],
    }


def text(case: Case, findings: Sequence[Finding]) -> str:
    """The report. ``findings``: in order."""
    first, *rest = findings
    lines = _whole(case, first)
    if rest:
        lines += ["", "Also:"]
        for one in rest:
            lines += ["", *_short(case, one)]
    lines += ["", "Looked at:", *(line for view in case.views for line in _target(case, view))]
    missing = [one for one in case.missing if one not in first.evidence_against]
    if missing:
        lines += ["", "Not known:", *(line for one in missing for line in _item("  - ", one))]
    lines += ["", f"{clock(case, case.at)}, gathered on {case.snapshot.host} in {case.snapshot.seconds:.1f} s"]
    return "\n".join(line.rstrip() for line in lines)


def _whole(case: Case, one: Finding) -> list[str]:
    lines = _headline(one)
    lines += _field("where", one.hop) if one.severity > Severity.UNKNOWN else []
    lines += _since(case, one)
    lines += _rooms(one, len(one.rooms))
    lines += _list("for", "+ ", one.evidence_for)
    lines += _list("missing" if one.severity is Severity.UNKNOWN else "against", "- ", one.evidence_against)
    lines += _list("do", "> ", one.todo)
    return lines


def _short(case: Case, one: Finding) -> list[str]:
    lines = _headline(one)
    lines += _field("where", one.hop)
    lines += _rooms(one, SHORT_ROOMS)
    lines += _list("for", "+ ", one.evidence_for[:SHORT_EVIDENCE])
    lines += _list("against", "- ", one.evidence_against[:SHORT_EVIDENCE])
    lines += _list("do", "> ", one.todo[:1])
    return lines


def _headline(one: Finding) -> list[str]:
    title = _TITLES.get(one.severity, one.severity.name)
    support = f", {one.support.name.lower()}" if one.severity > Severity.NOTE else ""
    return _item(f"{title}{support}: ", one.headline, "  ")


def _since(case: Case, one: Finding) -> list[str]:
    if one.since is None:
        return []
    return _field("since", f"{clock(case, one.since)} ({seconds(max(0.0, case.at - one.since))} before)")


def _rooms(one: Finding, most: int) -> list[str]:
    shown = one.rooms[:most]
    if not one.rooms_total:
        return []
    more = "" if one.rooms_total == len(shown) else f", {len(shown)} of them:" if shown else ", not named anywhere"
    lines = _field("rooms", f"{one.rooms_total}{more}")
    return lines + [line for room in shown for line in _item(" " * 10, _room(room), " " * 12)]


def _room(one: RoomRef) -> str:
    sides = [f"{name} {words}" for name, words in (("prefill:", one.prefill), ("decode:", one.decode)) if words]
    return f"{one.room}{f' rid={one.rid}' if one.rid else ''} {'; '.join(sides)}"


def _field(name: str, value: str) -> list[str]:
    return _item(f"  {name:<8}", value, " " * 10)


def _list(name: str, mark: str, values: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for value in values:
        head = f"  {name if not lines else '':<8}{mark}"
        lines += _item(head, value, " " * 12)
    return lines


def _item(head: str, value: str, indent: str | None = None) -> list[str]:
    """Wrapped, words kept whole where they fit."""
    return textwrap.wrap(
        head + value, WIDTH, subsequent_indent=" " * len(head) if indent is None else indent, break_on_hyphens=False
    )


def _target(case: Case, view: View) -> list[str]:
    said = []
    if view.started_at is not None:
        said.append(f"up {duration(max(0.0, case.at - view.started_at))}")
    if not view.answers:
        said.append("does not answer")
    elif view.ready_reasons:
        said.append("not ready")
    if view.keeps_accounts:
        said.append(counted(len(view.live), "live room"))
        failed = sum(view.failed_by_reason.values())
        said.append(f"{failed} failed since it started")
    return _item("  ", f"{view.name}: {', '.join(said) or 'answers'}", "    ")


def clock(case: Case, at: float) -> str:
    """Local time of the machine that gathered."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at + case.snapshot.utc_offset))
