"""Commands and the processes of a local cluster import our bootstrap: seconds of torch would be paid at every start."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "sglang", "transformers", "numpy")


@pytest.mark.parametrize(
    "module",
    ["sglang_pd", "sglang_pd.environ", "sglang_pd.cli", "sglang_pd.cluster.supervisor", "sglang_pd.doctor.collect",
     "sglang_pd.doctor.rules", "sglang_pd.doctor.report", "sglang_pd.top.fetch", "sglang_pd.top.loop"],
)  # fmt: skip
def test_nothing_heavy_is_loaded(module: str):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
