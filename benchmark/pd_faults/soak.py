"""Random requests under random faults: one prefill and two decodes with the real managers and real NIXL, no model.

python benchmark/pd_faults/soak.py --minutes 10 --seed 1

At every scrape, ten a second, each role's ledger and its metrics must agree that started == ended + live. Every request
must end once on each side, in time and with a reason of a fault it met; one that met none must succeed; bytes are
verified. At the end nothing may be left over. Exit status 1 where any of it does not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("test", "benchmark"))

from harness.faults.site import Site
from harness.managers import Nursery
from pd_faults.disturb import DISTURBANCES, during
from pd_faults.load import Load
from pd_faults.summary import Summary, check_nothing_left


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are injected (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests and of the faults (default 1)")
    parser.add_argument("--requests", type=int, default=8, help="live at a time (default 8)")
    parser.add_argument("--pause", type=float, default=1.0, help="mean seconds between two faults (default 1)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    chance = random.Random(options.seed)
    with Nursery() as nursery:
        site = Site(nursery)
        summary = Summary()
        load = Load(site, summary, random.Random(options.seed), options.requests)
        baseline = [role.call("resources") for role in site.roles]
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            load.run(min(chance.expovariate(1 / options.pause), end - time.monotonic()))
            disturbance = chance.choice(DISTURBANCES)
            summary.faults[disturbance.name] += 1
            # It may be the turn of either decode.
            chance.shuffle(site.decodes)
            load.disturbed_by(disturbance)
            with during(site, disturbance, chance) as over:
                load.after_disturbance()
                load.run(over - time.monotonic())
            load.disturbance_over()
        load.finish()
        check_nothing_left(site, baseline, summary)
        site.close()
    print(summary.text())
    return int(bool(summary.problems))


if __name__ == "__main__":
    sys.exit(main())
