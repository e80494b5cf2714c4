"""``sglang-pd up``, ``down``, ``restart`` and ``status``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_pd.cluster.plan import ClusterSpec
    from sglang_pd.cluster.state import ClusterDir

DEFAULT_NAME = "default"
NOT_UP = 1


def add_parsers(commands: argparse._SubParsersAction) -> None:
    """Register the four commands. What they need is imported when they run."""
    start = commands.add_parser(
        "up",
        help="start prefill and decode servers and the gateway on this machine",
        description="Start prefill and decode servers and the gateway on this machine, and wait until it can serve. "
        "Flags after -- go to every server (python -m sglang.launch_server --help).",
    )
    start.add_argument("--model", type=Path, metavar="DIR", help="model folder (default: the demo model)")
    start.add_argument("--prefill", type=int, default=1, metavar="N", help="prefill servers (default: 1)")
    start.add_argument("--decode", type=int, default=1, metavar="N", help="decode servers (default: 1)")
    start.add_argument("--host", default="127.0.0.1", help="address of the gateway (default: 127.0.0.1)")
    start.add_argument("--port", type=int, metavar="P", help="port of the gateway (default: 30000, or any if taken)")
    start.add_argument("--detach", action="store_true", help="return when it is ready and leave it running")
    start.add_argument("--ask", metavar="TEXT", help="ask this when it is ready, and show the answer")
    start.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="give up unless ready by then")
    start.add_argument(
        "--hung-after", type=float, metavar="S", help="kill and restart a server that answers nothing for so long"
    )
    start.add_argument("--prefill-args", default="", metavar="FLAGS", help="flags for prefill servers, in quotes")
    start.add_argument("--decode-args", default="", metavar="FLAGS", help="flags for decode servers, in quotes")
    start.add_argument("--gateway-args", default="", metavar="FLAGS", help="flags for the gateway (smg launch --help)")
    start.add_argument("server_args", nargs="*", metavar="-- FLAGS", help="flags for every server")
    start.set_defaults(run=up)

    stop = commands.add_parser("down", help="stop what `up` started and check that nothing is left")
    stop.set_defaults(run=down)

    again = commands.add_parser(
        "restart",
        help="end a server of a running cluster and start it again",
        description="End processes of a running cluster and start them again, on the same ports and with the same "
        "flags; everything else goes on. Returns when they are ready and the gateway sends them requests.",
    )
    again.add_argument("process", nargs="+", metavar="PROCESS", help="for example decode-0; see `sglang-pd status`")
    again.add_argument("--kill", action="store_true", help="kill -9 at once (default: SIGTERM first)")
    again.add_argument(
        "--grace", type=float, metavar="S", help="from SIGTERM to SIGKILL (default: SGLANG_PD_DRAIN_TIMEOUT + 5)"
    )
    again.add_argument("--timeout", type=float, default=600.0, metavar="S", help="give up unless ready by then")
    again.set_defaults(run=restart)

    show = commands.add_parser(
        "status", help="processes, start-up time and memory of a cluster", description="Exit code 1 where none is up."
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.set_defaults(run=status)

    for one in (start, stop, again, show):
        one.add_argument("--name", default=DEFAULT_NAME, help=f"which cluster (default: {DEFAULT_NAME})")


def up(args: argparse.Namespace) -> int:
    """Start a cluster. Returns the exit code; raises ``UserError`` for what cannot be started."""
    from sglang_pd.cluster import display, session
    from sglang_pd.cluster.logs import keep_previous
    from sglang_pd.cluster.plan import build
    from sglang_pd.cluster.ports import PortPicker
    from sglang_pd.cluster.state import ClusterDir, port_allocation

    folder = ClusterDir.named(args.name)
    lock = folder.lock()
    try:
        spec = _spec(args)
        _clean_up(folder)
        with port_allocation(folder) as taken:
            plan = build(spec, PortPicker(taken))
            folder.save_plan(plan)
        keep_previous(folder.logs)
    except BaseException:
        os.close(lock)
        raise
    return session.run(folder, plan, lock, args.detach, display.create(), args.ask)


def _spec(args: argparse.Namespace) -> ClusterSpec:
    from sglang_pd import environ
    from sglang_pd.cluster import gpus
    from sglang_pd.cluster.plan import GATEWAY_LOG, ClusterSpec, check_model, split_flags

    spec = ClusterSpec(
        name=args.name,
        model=check_model(args.model) if args.model else _demo_model(),
        prefill=args.prefill,
        decode=args.decode,
        host=args.host,
        port=args.port,
        server_args=tuple(args.server_args),
        prefill_args=split_flags("--prefill-args", args.prefill_args),
        decode_args=split_flags("--decode-args", args.decode_args),
        gateway_args=split_flags("--gateway-args", args.gateway_args),
        startup_timeout_s=args.timeout,
        hung_after_s=args.hung_after,
        gateway_log=environ.upstream("RUST_LOG") or GATEWAY_LOG,
    )
    return spec.on_cards(gpus.visible())


def _demo_model() -> Path:
    from sglang_pd.demo.smollm2 import build

    return build()


def _clean_up(folder: ClusterDir) -> None:
    """End what a supervisor that was killed left behind. We hold the lock, so none runs."""
    from sglang_pd.cluster.down import sweep
    from sglang_pd.cluster.plan import Plan
    from sglang_pd.cluster.state import is_stale

    state = folder.load()
    if state is not None and is_stale(state):
        ended = sweep(state, Plan.grace_s).ended
        print(f"Cleaned up after a supervisor that was killed ({len(ended)} processes were left).", file=sys.stderr)


def down(args: argparse.Namespace) -> int:
    """Stop a cluster and say what was stopped. Raises ``UserError`` where there is none or something is left."""
    from sglang_pd.cluster.down import stop
    from sglang_pd.cluster.state import ClusterDir

    stopped = stop(ClusterDir.named(args.name))
    if stopped.stale:
        print(f"The supervisor of cluster '{args.name}' had been killed; cleaned up.")
    for name, tree in stopped.trees.items():
        if tree:
            print(f"stopped {name:<10} {len(tree)} process{'es' if len(tree) > 1 else ''} (pid {tree[0].pid})")
    print(f"Cluster '{args.name}' is stopped: no process and no listening port is left.")
    return 0


def restart(args: argparse.Namespace) -> int:
    """Restart processes of a cluster and say how long it took. Raises ``UserError`` where one did not come back."""
    from sglang_pd.cluster.restart import drained_s, restart
    from sglang_pd.cluster.state import ClusterDir

    folder = ClusterDir.named(args.name)
    grace_s = drained_s() if args.grace is None else args.grace
    names = list(dict.fromkeys(args.process))
    for one in restart(folder, names, kill=args.kill, grace_s=grace_s, timeout_s=args.timeout):
        print(f"restarted {one.name:<10} pid {one.pid}: ended in {one.end_s:.1f} s, ready after {one.ready_s:.1f} s")
    return 0


def status(args: argparse.Namespace) -> int:
    """Show a cluster. Returns 0 where it is up, else 1."""
    from sglang_pd.cluster.state import ClusterDir
    from sglang_pd.cluster.status import report, text

    folder = ClusterDir.named(args.name)
    facts = report(folder)
    print(json.dumps(facts, indent=2) if args.json else text(folder))
    return 0 if facts["status"] in ("starting", "ready", "stopping") else NOT_UP
