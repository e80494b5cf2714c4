"""Numbers, times and lists as a finding says them; pure."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_pd.cluster.words import duration


def seconds(value: float) -> str:
    """``2.4 s`` below a minute, ``5m12s`` above."""
    return f"{value:.1f} s" if value < 60 else duration(value)


def counted(number: int, what: str) -> str:
    """``1 room``, ``2 rooms``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def by_number(counts: Mapping[str, int]) -> str:
    """``transfer_timeout 21, peer_lost 1``: most first."""
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items(), key=lambda one: -one[1]))
