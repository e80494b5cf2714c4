"""``sglang-pd check``: the table of upstream touch points, whether upstream still fits, and what is live here."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from sglang_pd import hooks, upstream


@dataclass(frozen=True)
class Row:
    """One touch point.

    ``state``: "live", "broken" (with ``reason``), "not here" (not meant for this process), or "fits" where only the
    contract was looked at.
    """

    target: str
    kind: str
    where: str
    state: str
    reason: str
    why: str
    until: str


def rows(live: bool) -> list[Row]:
    """Check every row of the table; with ``live`` also attach all that belong here, as a server would.

    Exits, as a server would, where upstream's version or a touch point of this process does not fit.
    """
    reasons = upstream.broken((hook.target, hook.recorded) for hook in hooks.HOOKS)
    here: tuple[hooks.Hook, ...] = ()
    if live and not reasons:
        # Upstream's utils choose the platform, which is what makes this a process without a GPU or one with.
        from sglang.srt.plugins import load_plugins

        load_plugins()
        here = hooks.selected()
        reasons = hooks.not_live(here)
    return [
        Row(
            hook.target,
            hook.kind,
            hook.where,
            _state(hook, here, reasons, live),
            reasons.get(hook.target, ""),
            hook.why,
            hook.until,
        )
        for hook in hooks.HOOKS
    ]


def _state(hook: hooks.Hook, here: tuple[hooks.Hook, ...], reasons: dict[str, str], live: bool) -> str:
    if hook.target in reasons:
        return "broken"
    if not live or reasons:
        return "fits"
    return "live" if hook in here else "not here"


def add_parsers(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("check", help="show every upstream touch point and whether it is live")
    parser.add_argument("--static", action="store_true", help="only compare with upstream's files; imports nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    upstream.check_version()
    found = rows(live=not args.static)
    broken = [row for row in found if row.state == "broken"]
    if args.json:
        print(json.dumps({"upstream": upstream.PINNED, "hooks": [asdict(row) for row in found]}, indent=2))
    else:
        _print(found)
    if broken:
        print(f"sglang-pd: {len(broken)} of {len(found)} touch points are broken", file=sys.stderr)
    return 1 if broken else 0


def _print(found: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Touch points in sglang {upstream.PINNED}", show_lines=True)
    for heading in ("state", "where", "kind", "target and why"):
        table.add_column(heading, overflow="fold")
    for row in found:
        style = {"live": "green", "fits": "green", "broken": "bold red"}.get(row.state, "dim")
        text = f"{row.target}\n[dim]{row.why}; can go when {row.until}[/dim]"
        if row.reason:
            text += f"\n[red]{row.reason}[/red]"
        table.add_row(f"[{style}]{row.state}[/{style}]", row.where, row.kind, text)
    Console().print(table)
