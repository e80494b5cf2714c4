"""The package needs torch and triton only, and of those as little as it can."""

import ast
import subprocess
import sys
from pathlib import Path

import sgl_kernel_sm120

FILES = sorted(Path(sgl_kernel_sm120.__file__).parent.rglob("*.py"))
ALLOWED = {"sgl_kernel_sm120", "torch", "triton", *sys.stdlib_module_names}


def test_it_imports_nothing_but_torch_triton_and_itself():
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(path.name, alias.name.partition(".")[0]) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((path.name, (node.module or "").partition(".")[0]))
    assert len(FILES) > 10
    assert sorted((name, module) for name, module in found if module not in ALLOWED) == []


def test_launch_parameters_are_known_without_torch():
    """The registry of environment variables reads them, in commands that must start at once."""
    code = "import sys, sgl_kernel_sm120.index_k.launch; print('torch' in sys.modules or 'triton' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"
