"""The supervisor as a process: ``python -m sglang_pd.cluster.supervise FOLDER``, started by ``sglang-pd up``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_pd.cluster import launcher
from sglang_pd.cluster.procfs import die_with_parent, identify
from sglang_pd.cluster.state import ClusterDir
from sglang_pd.cluster.supervisor import Supervisor


def main(argv: Sequence[str] | None = None) -> int:
    """Run the plan of a cluster folder. Returns 0 after a stop that was asked for, 1 after a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lock-fd", type=int, required=True, help="the cluster's lock, held until this process ends")
    parser.add_argument("--with-parent", type=int, help="stop the cluster when the process with this pid ends")
    args = parser.parse_args(argv)
    # A process that this one starts must not hold the lock beyond it.
    os.set_inheritable(args.lock_fd, False)
    if args.with_parent is not None:
        die_with_parent(args.with_parent, signal.SIGTERM)
    folder = ClusterDir(args.folder)
    plan = folder.load_plan()
    own = identify(os.getpid())
    if plan is None or own is None:
        raise FileNotFoundError(f"no plan in {args.folder}, or no /proc")
    return Supervisor(
        folder, plan, launcher.create((one.argv for one in plan.processes), folder.log("preload")), own
    ).run()


if __name__ == "__main__":
    sys.exit(main())
