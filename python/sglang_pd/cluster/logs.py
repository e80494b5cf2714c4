"""Log files: their end for people, and what is new in them for the supervisor."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

TAIL_LINES = 25
_TAIL_BYTES = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log without terminal colours; empty where there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip() for line in _COLOURS.sub("", text).splitlines() if line.strip()][-lines:]


def keep_previous(folder: Path) -> None:
    """Make ``folder`` empty; what was in it is kept beside it as ``NAME.previous`` until the next time."""
    previous = folder.with_name(folder.name + ".previous")
    if folder.exists():
        if previous.exists():
            shutil.rmtree(previous)
        folder.rename(previous)
    folder.mkdir(parents=True)


class NewLines:
    """Whole lines that were appended to a file since the last call."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0
        self._rest = b""

    def skip(self) -> None:
        """Go to the end, past what nobody read."""
        self._offset, self._rest = self._path.stat().st_size if self._path.exists() else 0, b""

    def read(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]
