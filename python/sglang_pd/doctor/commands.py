"""``sglang-pd doctor``."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_pd.errors import UserError

if TYPE_CHECKING:
    from sglang_pd.doctor.evidence import Snapshot
    from sglang_pd.doctor.targets import Target

WELL, FAULTY, NOT_KNOWN = 0, 1, 3
TIMEOUT_S, SHORTEST_S, LONGEST_S = 5.0, 1.0, 120.0
DEFAULT_NAME = "default"


def add_parsers(commands: argparse._SubParsersAction) -> None:
    """Register the command. What it needs is imported when it runs."""
    parser = commands.add_parser(
        "doctor",
        help="gather evidence from running servers and name the broken hop",
        description="Gather evidence from running prefill and decode servers and their gateway, and name the broken "
        "hop. Without a target it looks at the local cluster. It changes nothing. "
        "Exit code: 0 healthy, 1 a fault or a warning, 2 wrong input, 3 not enough evidence.",
    )
    parser.add_argument("--prefill", nargs="+", default=[], metavar="URL", help="prefill servers, as http://HOST:PORT")
    parser.add_argument("--decode", nargs="+", default=[], metavar="URL", help="decode servers")
    parser.add_argument("--gateway", metavar="URL", help="the gateway before them")
    parser.add_argument("--unit", nargs="+", default=[], metavar="NAME", help="systemd units that run them")
    parser.add_argument("--pid", nargs="+", default=[], metavar="PID", help="main processes of servers on this machine")
    parser.add_argument("--name", help=f"which local cluster (default: {DEFAULT_NAME})")
    parser.add_argument(
        "--timeout", default=str(TIMEOUT_S), metavar="S", help=f"seconds for each target (default: {TIMEOUT_S:g})"
    )
    parser.add_argument("--stacks", action="store_true", help="stacks of every scheduler, not only of wedged ones")
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="holds the key that the servers ask for")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="keep the evidence there, without secrets")
    parser.add_argument("--from-bundle", type=Path, metavar="FILE", help="judge such a file instead of running servers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, judge, and tell. Returns the exit code; raises ``UserError`` for wrong input."""
    from sglang_pd.doctor import report
    from sglang_pd.doctor.case import Case
    from sglang_pd.doctor.rules import judge

    snapshot = _snapshot(args)
    if args.bundle is not None:
        from sglang_pd.doctor import bundle

        size = bundle.write(args.bundle, snapshot)
        print(f"The evidence is in {args.bundle} ({size} bytes).", file=sys.stderr)
    case = Case(snapshot)
    findings = judge(case)
    if args.json:
        print(json.dumps(report.to_data(case, findings), indent=2))
    else:
        print(report.text(case, findings))
    return _exit_code(findings[0].severity.name)


def _exit_code(severity: str) -> int:
    return {"HEALTHY": WELL, "NOTE": WELL, "UNKNOWN": NOT_KNOWN}.get(severity, FAULTY)


def _snapshot(args: argparse.Namespace) -> Snapshot:
    given = [f"--{name}" for name in ("prefill", "decode", "gateway", "unit", "pid") if getattr(args, name)]
    if args.from_bundle is not None:
        others = [*given, *[f"--{name.replace('_', '-')}" for name in ("name", "stacks", "api_key_file", "bundle")
                            if getattr(args, name)]]  # fmt: skip
        if others:
            raise UserError(f"--from-bundle cannot be given with {', '.join(others)}: it judges an earlier run")
        from sglang_pd.doctor import bundle

        return bundle.read(args.from_bundle)
    if given and args.name is not None:
        raise UserError(f"--name cannot be given with {', '.join(given)}: it chooses a local cluster")
    from sglang_pd.doctor.collect import snapshot
    from sglang_pd.doctor.server import Options

    options = Options(timeout_of(args.timeout), args.stacks, _key(args.api_key_file))
    return snapshot(_targets(args), options)


def timeout_of(text: str) -> float:
    """The value of ``--timeout``, in seconds; raises ``UserError``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value <= LONGEST_S:
        raise UserError(f"--timeout {text!r} is not possible; allowed: {SHORTEST_S:g} to {LONGEST_S:g} seconds")
    return value


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise UserError(f"--api-key-file {path}: cannot be read: {error}") from None
    if not key or len(key.split()) != 1:
        raise UserError(f"--api-key-file {path}: it holds {len(key.split())} words; allowed: the key, and nothing else")
    return key


def _targets(args: argparse.Namespace) -> list[Target]:
    from sglang_pd.doctor import targets

    pids = []
    for text in args.pid:
        if not text.isdecimal():
            raise UserError(f"--pid {text!r} is no process id; allowed: a whole number from 1")
        pids.append(int(text))
    found = [
        *targets.of_urls(args.prefill, args.decode, args.gateway),
        *targets.of_units(args.unit),
        *targets.of_pids(pids),
    ]
    return found or targets.of_cluster(args.name or DEFAULT_NAME)
