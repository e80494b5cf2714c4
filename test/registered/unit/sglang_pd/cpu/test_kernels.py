"""In subprocesses: the stand-in changes what ``import`` finds for the life of a process."""

import subprocess
import sys

import pytest

from sglang_pd.cpu.kernels import KernelNotOnCpu, _Missing


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_and_submodules_import_and_refuse_to_be_called():
    printed = python(
        "from sglang_pd.cpu import kernels; kernels.install()\n"
        "import sgl_kernel, inspect\n"
        "from sgl_kernel.flash_attn import flash_attn_varlen_func as f\n"
        "from sgl_kernel.scalar_type import scalar_types\n"
        "scalar_types.uint4b8\n"
        "assert inspect.unwrap(f) is f\n"
        "try: f(1)\n"
        "except kernels.KernelNotOnCpu as error: print(error)\n"
    )
    assert printed.strip() == (
        "sgl_kernel.flash_attn.flash_attn_varlen_func is a GPU kernel, and this process serves on the CPU"
    )


def test_a_wheel_that_imports_here_is_left_in_place(tmp_path):
    (tmp_path / "sgl_kernel.py").write_text("REAL = True\n")
    printed = python(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from sglang_pd.cpu import kernels; kernels.install()\n"
        "import sgl_kernel; print(sgl_kernel.REAL)\n"
    )
    assert printed.strip() == "True"


def test_other_packages_are_not_touched():
    printed = python(
        "from sglang_pd.cpu import kernels; kernels.install()\n"
        "from importlib.util import find_spec; print(find_spec('sgl_kernel_npu'), find_spec('sgl_kernels'))\n"
    )
    assert printed.strip() == "None None"


def test_dunder_names_are_honestly_missing():
    with pytest.raises(AttributeError):
        _Missing("sgl_kernel.x").__wrapped__  # noqa: B018
    with pytest.raises(KernelNotOnCpu, match=r"sgl_kernel\.x\.y"):
        _Missing("sgl_kernel.x").y()
