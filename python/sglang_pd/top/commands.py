"""``sglang-pd top``."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_pd.errors import UserError

if TYPE_CHECKING:
    from sglang_pd.doctor.targets import Target

INTERVAL_S, SHORTEST_S, LONGEST_S = 2.0, 0.5, 60.0
DEFAULT_NAME = "default"


def add_parsers(commands: argparse._SubParsersAction) -> None:
    """Register the command. What it needs is imported when it runs."""
    parser = commands.add_parser(
        "top",
        help="live view of prefill and decode servers: rooms by phase, ages, failures, rates, peers",
        description="Live view of prefill and decode servers. Without a target it looks at the local cluster. Ctrl-C "
        "ends it. It reads /pd/ready, /pd/status, /pd/rooms and /pd/peers, and changes nothing.",
    )
    parser.add_argument("--prefill", nargs="+", default=[], metavar="URL", help="prefill servers, as http://HOST:PORT")
    parser.add_argument("--decode", nargs="+", default=[], metavar="URL", help="decode servers")
    parser.add_argument("--name", help=f"which local cluster (default: {DEFAULT_NAME})")
    parser.add_argument(
        "--interval", default=str(INTERVAL_S), metavar="S", help=f"seconds between two looks (default: {INTERVAL_S:g})"
    )
    parser.add_argument(
        "--once", action="store_true", help="look twice, an interval apart, print it once and end; for scripts"
    )
    parser.add_argument("--api-key-file", type=Path, metavar="FILE", help="holds the key that the servers ask for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: 0, and with ``--once`` 1 where a server is not ready. Raises ``UserError``."""
    from sglang_pd.top import fetch, loop

    interval_s = interval_of(args.interval)
    targets = fetch.servers(_targets(args))
    keys = fetch.keys(targets, _key(args.api_key_file))
    view = loop.View(lambda: fetch.ask(targets, keys))
    if args.once:
        view.look()
        time.sleep(interval_s)
        view.look()
        loop.print_once(view, sys.stdout)
        return 0 if view.well else 1
    loop.show(view, interval_s)
    return 0


def interval_of(text: str) -> float:
    """The value of ``--interval``, in seconds; raises ``UserError``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SHORTEST_S <= value <= LONGEST_S:
        raise UserError(f"--interval {text!r} is not possible; allowed: {SHORTEST_S:g} to {LONGEST_S:g} seconds")
    return value


def _targets(args: argparse.Namespace) -> list[Target]:
    from sglang_pd.doctor import targets

    given = [f"--{name}" for name in ("prefill", "decode") if getattr(args, name)]
    if given and args.name is not None:
        raise UserError(f"--name cannot be given with {', '.join(given)}: it chooses a local cluster")
    return targets.of_urls(args.prefill, args.decode, None) or targets.of_cluster(args.name or DEFAULT_NAME)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        words = path.read_text().split()
    except (OSError, ValueError) as error:
        raise UserError(f"--api-key-file {path}: cannot be read: {error}") from None
    if len(words) != 1:
        raise UserError(f"--api-key-file {path}: it holds {len(words)} words; allowed: the key, and nothing else")
    return words[0]
