"""The lines of a log that matter: its end, and what tells of failures further up."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from sglang_pd.doctor.evidence import Log

READ_BYTES = 2 * 1024 * 1024
TAIL_LINES = 16
MATCHED_LINES = 60
LINE_CHARACTERS = 420
JOURNAL_LINES = 5000

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Said in the ordinary course of things, and often.
_CHATTER = re.compile(r'INFO: +\S+ - "(GET|POST) |HTTP/1\.1" 200|UserWarning|warnings\.warn|DeprecationWarning')
_BATCH = re.compile(r"\b(Prefill|Decode) batch\b")
_MATTERS = re.compile(
    r"PD room failed|failed for request|\bERROR\b|\bCRITICAL\b|Traceback|Exception|\btimed out\b|Lost connection|"
    r"NIXL (transport )?error|nixl\w*Error|Failed to |crashed|SIGQUIT|SIGTERM|Watchdog|was already registered|"
    r"reloading its metadata|out of memory|Error fetching|pd_stall|PD stall|health check failed|Health probe failed",
    re.IGNORECASE,
)
_STARTS = re.compile(r"\bserver_args=(ServerArgs\(|\{)")


def of_file(path: str) -> Log:
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return Log(path, problem=f"cannot be read: {error.strerror}")
    return of_lines(path, text.splitlines())


def of_unit(unit: str, timeout_s: float) -> Log:
    """What journald has of a unit's last lines."""
    source = f"journald, unit {unit}"
    argv = ["journalctl", "--unit", unit, "--lines", str(JOURNAL_LINES), "--no-pager", "--quiet"]
    try:
        done = subprocess.run(
            [*argv, "--output", "short-iso-precise"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            errors="replace",
        )
    except FileNotFoundError:
        return Log(source, problem="there is no journalctl here")
    except subprocess.TimeoutExpired:
        return Log(source, problem=f"journalctl did not end within {timeout_s:.1f} s")
    if done.returncode != 0:
        return Log(source, problem=f"journalctl failed: {done.stderr.strip()[:200]}")
    return of_lines(source, done.stdout.splitlines())


def of_lines(source: str, lines: Iterable[str]) -> Log:
    """Pure."""
    clean = [line.rstrip() for line in (_COLOURS.sub("", line) for line in lines) if line.strip()]
    wanted = [line for line in clean if not _CHATTER.search(line) and not _STARTS.search(line)]
    batches = [line for line in wanted if _BATCH.search(line)]
    rest = [line for line in wanted if not _BATCH.search(line)]
    matched = [line for line in rest if _MATTERS.search(line)]
    return Log(
        source=source,
        last_batch=_short(batches[-1]) if batches else None,
        tail=[_short(line) for line in rest if not _MATTERS.search(line)][-TAIL_LINES:],
        matched=[_short(line) for line in matched[-MATCHED_LINES:]],
        matched_total=len(matched),
        starts=sum(1 for line in clean if _STARTS.search(line)),
    )


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 3] + "..."
