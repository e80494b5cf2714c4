"""A wheel and an sdist build, hold what they must, and the wheel's packages work beside upstream's files."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tree = tmp_path_factory.mktemp("tree")  # a build leaves folders behind, which are not wanted in the checkout
    for path in filter(lambda path: (ROOT / path).exists(), listed):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes((ROOT / path).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(tree)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    return next(dist.glob("*.whl"))


def test_sdist_holds_what_a_build_needs(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "python/sglang_pd/hooks.py"} <= names


def test_wheel_holds_our_leaf_packages_and_no_init_of_upstreams(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "sglang_pd/py.typed" in names
    assert "sgl_kernel_sm120/__init__.py" in names
    assert "sglang/srt/disaggregation/reliable/__init__.py" in names
    assert not {"sglang/__init__.py", "sglang/srt/__init__.py", "sglang/srt/disaggregation/__init__.py"} & names
    assert not [name for name in names if name.startswith(("python/", "test/"))]


def test_wheel_declares_the_pins_and_both_entry_points(wheel):
    archive = zipfile.ZipFile(wheel)
    text = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    for line in ("sglang==0.5.23", "nixl==1.5.1", "smg==1.13.0", "prometheus-client"):
        assert f"Requires-Dist: {line}" in text["METADATA"]
    assert "Requires-Python: <3.14,>=3.11" in text["METADATA"]
    assert "sglang_pd = sglang_pd:register" in text["entry_points.txt"]
    assert "sglang_pd_cpu = sglang_pd.cpu:activate" in text["entry_points.txt"]


def test_installed_beside_upstream_the_leaf_packages_import_and_upstream_is_whole(wheel, tmp_path):
    """Upstream's files as links in a folder of their own, with the wheel unpacked over them, as pip would."""
    upstream = Path(importlib.util.find_spec("sglang").origin).parent
    subprocess.run(["cp", "-rs", str(upstream), str(tmp_path / "sglang")], check=True)
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sglang.srt.disaggregation.reliable as ours, sglang.srt.disaggregation.utils as upstreams, sglang_pd\n"
        "print(ours.__file__, upstreams.__file__, sglang_pd.__file__, sep='\\n')"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    ).stdout.split("\n")
    assert all(path.startswith(str(tmp_path)) for path in printed[:3])


def test_attach_shows_our_packages_in_a_source_tree(tmp_path):
    """With no installed package of ours: only the source tree on the path, and one call."""
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if '__editable__' not in type(f).__module__ "
        "and '__editable__' not in getattr(f, '__module__', '')]\n"
        "import sglang_pd; sglang_pd.attach()\n"
        "import sglang.srt.disaggregation.reliable as ours; print(ours.__file__)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    ).stdout
    assert printed.strip() == str(ROOT / "python/sglang/srt/disaggregation/reliable/__init__.py")
