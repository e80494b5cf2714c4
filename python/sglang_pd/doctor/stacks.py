"""Python stacks of a running process, through py-spy where there is one; the process is not stopped for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

MOST_CHARACTERS = 12000


def dump(pid: int, timeout_s: float) -> tuple[str | None, str | None]:
    """The stacks of all threads; or None, and why there are none. What is read while a thread runs may be torn."""
    tool = find()
    if tool is None:
        return None, "there is no py-spy here (pip install py-spy)"
    argv = [tool, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=max(timeout_s, 0.1), errors="replace")
    except subprocess.TimeoutExpired:
        return None, f"py-spy did not end within {timeout_s:.1f} s"
    except OSError as error:
        return None, f"py-spy could not be started: {error}"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        why = next((line for line in lines if line.startswith("Error")), lines[-1])
        return None, f"py-spy failed: {why[:200]}"
    text = done.stdout
    return (text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "\n..."), None


def find() -> str | None:
    """Beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")
