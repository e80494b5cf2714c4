"""Resident memory of a process."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_pd.cluster.procfs import PROC


@dataclass(frozen=True)
class Memory:
    """Bytes. ``rss`` counts a page that several processes share in each of them; ``pss`` gives each its part of it, so
    that only ``pss`` may be added up. None where the kernel does not say."""

    rss: int | None
    pss: int | None

    def __add__(self, other: Memory) -> Memory:
        return Memory(_add(self.rss, other.rss), _add(self.pss, other.pss))


def parse_rollup(text: str) -> Memory:
    """Parse ``/proc/PID/smaps_rollup``: lines like ``Pss:   1234 kB``."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            sizes[name] = int(rest.split()[0]) * 1024
    return Memory(sizes.get("Rss"), sizes.get("Pss"))


def of(pid: int) -> Memory:
    """Memory of a process; both None where it is gone. ``pss`` is None where only rss is shown to us."""
    try:
        return parse_rollup((PROC / str(pid) / "smaps_rollup").read_text())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return Memory(_rss(pid), None)


def _rss(pid: int) -> int | None:
    try:
        status = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
