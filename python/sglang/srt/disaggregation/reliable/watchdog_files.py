"""The folder of the watchdog's reports, in which a bounded number is kept."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_pd.environ import envs

_NAME = re.compile(r"stall-\d{8}T\d{6}Z-.*\.json")
_number = itertools.count(1)


def folder() -> Path:
    """Where the user said, else below this package's own folder, which outlives a server."""
    return envs.SGLANG_PD_STALL_DIR.get() or envs.SGLANG_PD_HOME.get() / "stalls"


def write(where: Path, report: Mapping[str, Any], keep: int) -> Path:
    """Write a report and remove the oldest where there are more than ``keep``; returns the file.

    Its name begins with the time, so that names sort by it. Raises ``OSError``.
    """
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(report["at"]))
    # Several servers may share the folder.
    name = f"stall-{at}-{report['role']}-{report['rank']}-{report['pid']}-{next(_number):04d}.json"
    draft = where / f"{name}.tmp"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(report, file, indent=1)
    draft.replace(where / name)
    for path in kept(where)[:-keep]:
        # Another server may be removing it too.
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return where / name


def kept(where: Path) -> list[Path]:
    """The reports in the folder, oldest first."""
    return sorted(path for path in where.glob("stall-*.json") if _NAME.fullmatch(path.name))
