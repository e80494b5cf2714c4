"""``tools/find-python``: which Python the two commands use, and what they say where there is none."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools/find-python"


def find(*candidates):
    return subprocess.run(
        [str(TOOL)],
        env={"PATH": "/usr/bin:/bin", "PYTHON": " ".join(map(str, candidates))},
        capture_output=True,
        text=True,
    )


def old_python(folder):
    """An interpreter that says it is 3.10."""
    path = folder / "old-python"
    path.write_text('#!/bin/sh\ncase "$2" in *ok*) exit 1;; *) echo "=3.10";; esac\n')
    path.chmod(0o755)
    return path


def test_takes_the_first_that_is_supported(tmp_path):
    done = find(old_python(tmp_path), sys.executable)
    assert done.returncode == 0
    assert done.stdout.strip() == sys.executable


def test_unsupported_python_is_refused_with_what_is_needed(tmp_path):
    done = find(old_python(tmp_path), tmp_path / "absent")
    assert done.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "old-python=3.10" in done.stderr
    assert done.stdout == ""
