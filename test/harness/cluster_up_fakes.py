"""``sglang-pd up`` on a plan that is on disk already: ``python up_fakes.py FOLDER [--detach]``."""

import sys
from pathlib import Path

from sglang_pd.cluster import display, session
from sglang_pd.cluster.logs import keep_previous
from sglang_pd.cluster.state import ClusterDir

folder = ClusterDir(Path(sys.argv[1]))
lock = folder.lock()
plan = folder.load_plan()
assert plan is not None
keep_previous(folder.logs)
sys.exit(session.run(folder, plan, lock, "--detach" in sys.argv, display.create()))
