"""Twenty seconds of the soak; ``benchmark/pd_faults/soak.py`` runs it for as long as you like."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[4] / "benchmark" / "pd_faults" / "soak.py"
SECONDS = 20


def test_nothing_is_lost_under_random_faults():
    argv = [sys.executable, str(SOAK), "--minutes", str(SECONDS / 60), "--seed", "1"]
    soak = subprocess.run(argv, capture_output=True, text=True, timeout=500)
    print(soak.stdout)
    assert soak.returncode == 0, soak.stdout[-4000:] + soak.stderr[-2000:]
