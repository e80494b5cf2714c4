"""What a file of ours may be called, and where it may lie."""

import importlib.metadata
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Regular packages of upstream, or namespace folders that others fill too: an __init__.py of ours would hide them.
OPEN_FOLDERS = ["python/sglang", "python/sglang/srt", "python/sglang/srt/disaggregation", "python/sglang/srt/layers",
                "python/sglang/srt/layers/attention", "test"]  # fmt: skip


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_no_file_of_ours_is_one_of_upstreams():
    upstream = {str(path) for path in importlib.metadata.files("sglang") or ()}
    assert "sglang/srt/server_args.py" in upstream
    ours = {path.removeprefix("python/") for path in tracked() if path.startswith("python/sglang/")}
    assert ours
    assert not ours & upstream


def test_open_folders_stay_open():
    assert not [folder for folder in OPEN_FOLDERS if (ROOT / folder / "__init__.py").exists()]


def test_only_environ_reads_the_environment():
    import re

    reads = re.compile(r"os\.(environ|getenv)")
    found = [
        path
        for path in tracked()
        if path.endswith(".py")
        and path.startswith(("python/", "sgl-kernel/python/"))
        and not path.endswith("environ.py")
        if reads.search((ROOT / path).read_text())
    ]
    assert not found
