"""What lines of a server's log say: when, and which request failed; pure."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

MARK = "PD room failed: "
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)")
# Upstream's lines: "Prefill transfer failed for request rank=0 req.rid='a1' req.bootstrap_room=17 with exception ...".
_UPSTREAM = re.compile(
    r"(?P<what>(Prefill|Decode) (transfer|bootstrap|handshake)) failed for request.*?"
    r"rid='(?P<rid>[^']*)'.*?bootstrap_room=(?P<room>\d+)(?:.*? with exception (?P<why>.*))?"
)


@dataclass(frozen=True)
class LogFailure:
    """A request that a log says has failed. ``at``: None where the line has no time; ``why``: reason or text."""

    room: int
    rid: str | None
    what: str
    why: str
    at: float | None


def failures(lines: Iterable[str], utc_offset: float) -> list[LogFailure]:
    """Both this package's lines and upstream's; each request once."""
    found: dict[int, LogFailure] = {}
    for line in lines:
        if MARK in line:
            fields = dict(one.split("=", 1) for one in line.partition(MARK)[2].split() if "=" in one)
            if fields.get("room", "").isdigit():
                rid = unquote(fields.get("rid", "-"))
                what = f"{fields.get('role', '')} {fields.get('phase', '')}"
                room = int(fields["room"])
                found[room] = LogFailure(
                    room, None if rid == "-" else rid, what, fields.get("reason", ""), time_of(line, utc_offset)
                )
        elif match := _UPSTREAM.search(line):
            room = int(match["room"])
            why = (match["why"] or "").strip()
            found.setdefault(room, LogFailure(room, match["rid"], match["what"], why, time_of(line, utc_offset)))
    return list(found.values())


def time_of(line: str, utc_offset: float) -> float | None:
    """When a line was written, in seconds since the epoch; None where it does not say."""
    match = _TIME.search(line)
    if match is None:
        return None
    try:
        return calendar.timegm(time.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S")) - utc_offset
    except ValueError:
        return None
