"""The checker needs torch and nothing else."""

import subprocess
import sys

CODE = """
import sys
sys.modules["triton"] = sys.modules["sglang"] = None
from sgl_kernel_sm120.streamcheck import checking
import torch
with checking() as check:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros(4)
print(len(check.machine.log))
"""


def test_it_works_without_triton_and_sglang():
    printed = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "1"
