"""What nvidia-smi says, where there is one: whether the GPUs compute, and for whom."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess

from sglang_pd.doctor.evidence import Gpu

_FIELDS = "index,uuid,name,utilization.gpu,power.draw,memory.used,memory.total"


def read(timeout_s: float) -> tuple[list[Gpu] | None, str | None]:
    """The GPUs; or None, and why they could not be asked (None where there is nothing to ask)."""
    if shutil.which("nvidia-smi") is None:
        return None, None
    try:
        rows = _ask(f"--query-gpu={_FIELDS}", timeout_s)
        holders = _ask("--query-compute-apps=gpu_uuid,pid", timeout_s)
    except subprocess.TimeoutExpired:
        return None, f"nvidia-smi did not end within {timeout_s:.1f} s"
    except (OSError, subprocess.CalledProcessError) as error:
        return None, f"nvidia-smi failed: {error}"
    return parse(rows, holders), None


def _ask(query: str, timeout_s: float) -> str:
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=True).stdout


def parse(rows: str, holders: str) -> list[Gpu]:
    """Pure. ``rows``, ``holders``: what the two queries printed. A value that a card does not give is None."""
    pids: dict[str, list[int]] = {}
    for row in _rows(holders):
        if len(row) == 2 and row[1].isdigit():
            pids.setdefault(row[0], []).append(int(row[1]))
    return [
        Gpu(
            index=int(row[0]),
            name=row[2],
            utilisation=_number(row[3]),
            power_watts=_number(row[4]),
            memory_used_mib=_number(row[5]),
            memory_total_mib=_number(row[6]),
            pids=pids.get(row[1], []),
        )
        for row in _rows(rows)
        if len(row) == 7 and row[0].isdigit()
    ]


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
