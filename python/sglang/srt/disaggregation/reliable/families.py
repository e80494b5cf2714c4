"""Every metric of a transfer: name, kind, labels, and how the readings of several processes become one; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "sglang:"
PHASE_SECONDS_LE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the histogram's buckets, in seconds; one more is infinite."""


@dataclass(frozen=True)
class Family:
    """One metric. ``name`` is without ``sglang:``. ``across``: what becomes of the same labels in several processes of
    one server (data-parallel ranks)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    about: str
    across: Literal["sum", "max", "min"] = "sum"

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


STARTED = Family("pd_rooms_started_total", "counter", ("role",), "Rooms (requests handed over) that began.")
ENDED = Family(
    "pd_rooms_ended_total",
    "counter",
    ("role", "outcome", "phase", "reason"),
    "Rooms that ended: each once, with the phase in which its end was decided and the reason.",
)
LIVE = Family("pd_rooms_live", "gauge", ("role", "phase"), "Rooms that have not ended, by phase.")
OLDEST = Family(
    "pd_oldest_room_age_seconds",
    "gauge",
    ("role", "phase"),
    "How long the first room of a phase has been in it. It grows on while the scheduler's process is stopped.",
    "max",
)
PHASE_SECONDS = Family("pd_phase_seconds", "histogram", ("role", "phase"), "Seconds that ended rooms spent in a phase.")
BYTES = Family("pd_transfer_bytes_total", "counter", ("role",), "KV bytes handed to the transfer.")
RECONNECTS = Family("pd_reconnects_total", "counter", ("result",), "NIXL connections that broke: healed, or failed to.")
MESSAGES = Family(
    "pd_control_messages_total",
    "counter",
    ("kind", "result"),
    "Control messages received, by what became of them.",
)
THREAD_UP = Family("pd_control_thread_up", "gauge", ("thread",), "1 while the control thread runs, else 0.", "min")
QUARANTINED = Family(
    "pd_pages_quarantined", "gauge", (), "KV pages that decode keeps from reuse, since prefill may still write to them."
)
QUARANTINE_AGE = Family(
    "pd_quarantine_oldest_age_seconds", "gauge", (), "How long the first of those pages have been kept.", "max"
)
QUARANTINE_RELEASED = Family(
    "pd_quarantine_released_total",
    "counter",
    ("result",),
    "Rooms whose kept pages were given back: acknowledged by prefill, its process proven dead, or after a timeout.",
)
STALLS = Family(
    "pd_stalls_total",
    "counter",
    ("role", "phase", "cause"),
    "Stalls that the watchdog reported: rooms of the phase did not move, or the scheduler's loop (`loop`). Causes: "
    "docs/stalls.md.",
)
READING_AGE = Family(
    "pd_reading_age_seconds",
    "gauge",
    ("role",),
    "How old the numbers here are: about a second, and growing where the scheduler's process is stopped.",
    "max",
)

FAMILIES = (
    STARTED,
    ENDED,
    LIVE,
    OLDEST,
    PHASE_SECONDS,
    BYTES,
    RECONNECTS,
    MESSAGES,
    THREAD_UP,
    QUARANTINED,
    QUARANTINE_AGE,
    QUARANTINE_RELEASED,
    STALLS,
    READING_AGE,
)


def markdown() -> str:
    """The text of ``docs/metrics.md``."""
    lines = [
        "# Metrics",
        "",
        "Generated from `families.py` in `python/sglang/srt/disaggregation/reliable/` by `make docs`; a test compares.",
        "",
        "On `/metrics` of prefill and decode, beside upstream's, where the server runs with `--enable-metrics`. All",
        "numbers of a scrape come from one reading of the ledger, about a second old. At every scrape, for each role,",
        "`pd_rooms_started_total` is the sum of `pd_rooms_ended_total` and `pd_rooms_live`. Tensor-parallel ranks",
        "count a room once; data-parallel ranks are added up. The reasons, and what each means to the client, stand in",
        "`reasons.py`. With `--tokenizer-worker-num` above 1 the HTTP workers load no plugins, and serve upstream's",
        "metrics alone.",
        "",
        "| Metric | Kind | Labels | What it counts |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
        lines.append(f"| `{family.full_name}` | {family.kind} | {labels} | {family.about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
