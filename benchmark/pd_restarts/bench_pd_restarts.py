"""Restart, hang and kill single servers of a 2 prefill + 2 decode cluster under an agentic load, and count what clients
notice; with our transfer and with upstream's.

python benchmark/pd_restarts/bench_pd_restarts.py --quick --scenario kill-decode
python benchmark/pd_restarts/bench_pd_restarts.py --out benchmark/pd_restarts/results/NAME.json

A tiny model on this machine's CPU behind the gateway of `sglang-pd up`, NIXL over TCP on loopback. Each scenario has a
cluster of its own, where the same sessions run undisturbed first. An --out that exists is added to. Ctrl-C keeps what
was measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from pd_restarts import document, store
from pd_restarts.load import Shape
from pd_restarts.measure import SYSTEMS, measure
from pd_restarts.scenarios import Sizes, scenarios
from sglang_pd.demo.tiny import build_tiny

QUICK = Sizes(hang=20.0, restarts=4, many=5)
INTERRUPTED = 130


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, sizes, shape = list(scenarios(Sizes())), Sizes(), Shape()
    add = parser.add_argument
    add("--scenario", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), help="default: both")
    add("--quick", action="store_true", help=f"hangs of {QUICK.hang:g} s, fewer restarts, fewer sessions")
    add("--hang-seconds", type=float, metavar="S", help=f"how long a server hangs (default {sizes.hang:g})")
    add("--restarts", type=int, metavar="N", help=f"restarts in a row (default {sizes.restarts})")
    add("--many", type=int, metavar="N", help=f"restarts around which resources are measured (default {sizes.many})")
    add("--sessions", type=int, default=shape.at_a_time, metavar="N", help="at a time (default %(default)s)")
    add("--pool", type=int, metavar="N", help=f"different sessions (default {shape.pool})")
    add("--rounds", type=int, default=shape.rounds, metavar="N", help="of a session (default %(default)s)")
    add("--streaming", type=float, default=0.0, metavar="SHARE", help="of requests that stream (default 0)")
    add("--patience", type=float, default=shape.patience_s, metavar="S", help="later is stuck (default %(default)g)")
    add("--gateway-args", default="", metavar="FLAGS", help="flags for the gateway, as those of sglang-pd up")
    add("--home", type=Path, help="where the cluster's state and logs are kept (default: a temporary folder)")
    add("--out", type=Path, help="keep the result there as JSON; one that exists is added to")
    add("--document", type=Path, help="write the page of --out there")
    return parser.parse_args(argv)


def sizes_of(options: argparse.Namespace) -> Sizes:
    base = QUICK if options.quick else Sizes()
    return Sizes(
        hang=base.hang if options.hang_seconds is None else options.hang_seconds,
        restarts=base.restarts if options.restarts is None else options.restarts,
        many=base.many if options.many is None else options.many,
    )


def shape_of(options: argparse.Namespace) -> Shape:
    return Shape(
        pool=options.pool or (24 if options.quick else Shape.pool),
        rounds=options.rounds,
        at_a_time=options.sessions,
        streamed=options.streaming,
        patience_s=options.patience,
    )


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    shape, sizes = shape_of(options), sizes_of(options)
    all_ = scenarios(sizes)
    found = store.load(options.out)
    interrupted = failed = False
    with tempfile.TemporaryDirectory(prefix="pd-restarts-") as name:
        home = (options.home or Path(name)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        model = build_tiny(home / "tiny")
        try:
            for scenario in (all_[one] for one in options.scenario):
                for system in options.systems:
                    print(f"{scenario.name}, {system}: {scenario.title}", file=sys.stderr, flush=True)
                    start = time.monotonic()
                    try:
                        result = measure(scenario, system, shape, home, model, options.gateway_args)
                    except (RuntimeError, ValueError) as error:
                        failed = True
                        print(f"not measured: {error}", file=sys.stderr, flush=True)
                        continue
                    result["took"] = round(time.monotonic() - start, 1)
                    store.add(found, scenario, system, result, shape, sizes)
                    store.save(found, options.out)
        except KeyboardInterrupt:
            interrupted = True
            print("Interrupted; what was measured is kept.", file=sys.stderr)
    print(document.tables(found))
    if options.document:
        options.document.write_text(document.page(found))
    return INTERRUPTED if interrupted else int(failed)


if __name__ == "__main__":
    sys.exit(main())
