"""Three faults on real servers, with our transfer and with upstream's in the same run; and what an idle pair costs.

python benchmark/pd_faults/bench_pd_faults.py --out benchmark/pd_faults/results/NAME.json
python benchmark/pd_faults/bench_pd_faults.py --only idle --idle 60

A tiny model on this machine's CPU, NIXL over TCP on loopback. Every timeout of either side is 30 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from harness.fleet import TCP, UPSTREAM, Fleet
from pd_faults.idle import idle
from pd_faults.outcome import table
from pd_faults.scenarios import SCENARIOS, warm_up
from sglang_pd import environ
from sglang_pd.demo.tiny import build_tiny

SIDES = {"ours": {}, "upstream": UPSTREAM}
TIMEOUT_S = 30.0
FLAGS = ("--dtype", "float32", "--max-total-tokens", "65536", "--chunked-prefill-size", "512")
IDLE = "idle"


def timeouts() -> dict[str, str]:
    """Upstream's two, and every deadline of ours that is longer by default."""
    ours = [
        name
        for name, field in environ.fields().items()
        if name.endswith("_TIMEOUT") and name.startswith(("SGLANG_PD_PREFILL_", "SGLANG_PD_DECODE_"))
        if field.default > TIMEOUT_S
    ]
    theirs = ["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"]
    return dict.fromkeys([*ours, "SGLANG_PD_TRANSFER_TIMEOUT", *theirs], f"{TIMEOUT_S:g}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*SCENARIOS, IDLE]
    parser.add_argument("--only", nargs="+", choices=every, default=list(SCENARIOS), help="default: the three faults")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="default: both")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="also measure idle pairs, this long each")
    parser.add_argument("--rounds", type=int, default=2, help="idle pairs of each side, in turn (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default 1)")
    parser.add_argument("--out", type=Path, help="keep the result there as JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="pd-faults-") as name:
        folder = Path(name)
        model = build_tiny(folder / "tiny")
        for scenario in (one for one in options.only if one != IDLE):
            decodes, run = SCENARIOS[scenario]
            for side in options.sides:
                env = {**TCP, **timeouts(), **SIDES[side]}
                with Fleet(folder / f"{scenario}-{side}", model, decodes=decodes, flags=FLAGS, env=env) as fleet:
                    dice = random.Random(options.seed)
                    warm_up(fleet, dice)
                    results.setdefault(scenario, {})[side] = run(fleet, dice)
                print(f"{scenario} {side}: {json.dumps(results[scenario][side])}", flush=True)
        if options.idle or IDLE in options.only:
            results[IDLE] = {side: [] for side in options.sides}
            for number in range(options.rounds):
                for side in options.sides:
                    env = {**TCP, **SIDES[side]}
                    with Fleet(folder / f"idle-{side}-{number}", model, flags=FLAGS, env=env) as fleet:
                        warm_up(fleet, random.Random(options.seed))
                        results[IDLE][side].append(idle(fleet, options.idle or 30.0))
                    print(f"{IDLE} {side}: {json.dumps(results[IDLE][side][-1])}", flush=True)
    print(table(results))
    if options.out:
        options.out.write_text(json.dumps({"about": about(), "results": results}, indent=1) + "\n")
    return 0


def about() -> dict[str, Any]:
    names = ("sglang", "nixl", "torch")
    return {
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "timeout_seconds": TIMEOUT_S,
        **{name: version(name) for name in names},
    }


if __name__ == "__main__":
    sys.exit(main())
