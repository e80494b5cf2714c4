"""Where the scheduler ranks of a server answer for themselves: each announces its port in a folder of the server's own.

A rank that is gone leaves its announcement behind, and that is how the server knows that it is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_pd import environ
from sglang_pd.cluster import procfs
from sglang_pd.cluster.procfs import Identity

PATTERN = "rank-*.json"
VARIABLE = "SGLANG_PD_SERVER_DIR"


@dataclass(frozen=True)
class Rank:
    """One scheduler process. ``name`` is unique in its server, such as ``tp0``; it answers on loopback ``port``."""

    name: str
    role: str
    pid: int
    started: int
    port: int

    @property
    def lives(self) -> bool:
        return procfs.alive(Identity(self.pid, self.started))


def make_folder(*args: Any, **kwargs: Any) -> None:
    """BEFORE hook on ``_launch_subprocesses``: the ranks that this process is about to start inherit the folder.

    Raises ``PermissionError`` where another user owns the folder that it should lie in.
    """
    home = Path(tempfile.gettempdir()) / f"sglang-pd-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} is not this user's own folder; remove it, or set TMPDIR")
    sweep(home)
    own = procfs.identify(os.getpid())
    assert own is not None, "this process runs"
    path = home / f"{own.pid}-{own.started}"
    shutil.rmtree(path, ignore_errors=True)  # of ranks that this process started before
    path.mkdir(mode=0o700)
    environ.take_over({VARIABLE: str(path)})


def sweep(home: Path) -> None:
    """Remove the folders of servers that are gone: most are killed at last, and cannot do so themselves."""
    for path in home.iterdir():
        of = re.fullmatch(r"(\d+)-(\d+)", path.name)
        if of and not procfs.alive(Identity(int(of[1]), int(of[2]))):
            shutil.rmtree(path, ignore_errors=True)  # another server may be sweeping too


def folder() -> Path:
    """The folder of this process's server. Raises ``RuntimeError`` outside one."""
    path = environ.envs.SGLANG_PD_SERVER_DIR.get()
    if path is None:
        raise RuntimeError(f"{VARIABLE} is not set: no server started this process")
    return path


def announce(where: Path, name: str, role: str, port: int) -> Rank:
    """Tell the server that this process is its rank ``name``; an earlier process of that name is forgotten."""
    own = procfs.identify(os.getpid())
    assert own is not None, "this process runs"
    rank = Rank(name, role, own.pid, own.started, port)
    draft = where / f"{name}.{own.pid}.tmp"
    draft.write_text(json.dumps(asdict(rank)))
    draft.replace(where / f"rank-{name}.json")
    return rank


def announced(where: Path) -> list[Rank]:
    """Every rank that announced itself, by name, whether it still lives or not."""
    return [Rank(**json.loads(path.read_text())) for path in sorted(where.glob(PATTERN))]
