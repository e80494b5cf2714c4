"""The view as lines of text with a style each; pure. No line is longer than the width, 80 columns at least."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sglang_pd.cluster.words import duration, size
from sglang_pd.top.rates import Rates, new_failures, rates
from sglang_pd.top.reading import READY, SILENT, LiveRoom, Reading

WIDTH = 80
ROLES = ("prefill", "decode")
# Columns of numbers in the table of servers take 56.
_NUMBERS = 56
# So many of the rooms that are oldest, of all servers.
ROOMS = 8
# A room that is older is worth a colour; a healthy one is done within seconds.
OLD_S = 30.0


@dataclass(frozen=True)
class Line:
    """``style`` is rich's, empty for none."""

    text: str
    style: str = ""


Before = Mapping[str, Reading]
"""The readings of the round before, by the server's name."""


def lines(readings: Sequence[Reading], before: Before, at: float, width: int = WIDTH) -> list[Line]:
    """``at``: seconds since the epoch."""
    width = max(WIDTH, width)
    out = [_head(readings, at, width), Line("")]
    out += _servers(readings, before, width)
    out += _section("rooms by phase, and how long the first has been there", _phases(readings, width))
    out += _section(f"{'failed by reason, since start':<40}{'prefill':>14}{'decode':>14}", _reasons(readings, before))
    out += _section("peers, and when they were last heard", _peers(readings, width))
    out += _section(
        "oldest rooms: in their phase, and in all", _rooms([room for one in readings for room in one.rooms])
    )
    return [Line(_cut(line.text, width), line.style) for line in out]


def fitted(view: list[Line], height: int) -> list[Line]:
    """As many lines as there is place for; the last one says how many are missing."""
    if len(view) <= height:
        return view
    return [*view[: height - 1], Line(f"... {len(view) - height + 1} more lines: make the window higher", "dim")]


def age(seconds: float | None) -> str:
    """``0.2s``, ``42s``, ``5m12s``; ``-`` for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.1f}s" if seconds < 10 else duration(seconds)


def _head(readings: Sequence[Reading], at: float, width: int) -> Line:
    counts = Counter(one.role for one in readings)
    servers = ", ".join(f"{counts[role]} {role}" for role in ROLES)
    title = f"sglang-pd top  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}"
    return Line(title + servers.rjust(width - len(title)), "bold")


def _section(title: str, content: Iterable[Line]) -> list[Line]:
    found = list(content)
    return [Line(""), Line(title, "bold"), *(found or [Line("  none", "dim")])]


def _servers(readings: Iterable[Reading], before: Before, width: int) -> Iterator[Line]:
    names = width - _NUMBERS
    head = _row("server", "state", "up", "live", "oldest", "new/s", "done/s", "fail/s", "KV/s", names=names)
    yield Line(head, "bold")
    for one in readings:
        speed = rates(before.get(one.name), one)
        counted = (str(one.live), age(one.oldest if one.live else None)) if one.accounts else ("-", "-")
        up = "-" if one.age is None else duration(one.age)
        yield Line(_row(one.name, one.state, up, *counted, *_speeds(speed), names=names), _style(one))
        for alarm in one.alarms:
            style = "red" if one.state != READY else "yellow"
            for text in textwrap.wrap(alarm, width - 4, max_lines=2, placeholder=" ..."):
                yield Line(f"  ! {text}", style)


def _row(name: str, state: str, *numbers: str, names: int) -> str:
    widths = (6, 6, 7, 7, 7, 7, 6)
    return f"{_name(name, names - 1):<{names}}{state:<10}" + "".join(
        number.rjust(width) for number, width in zip(numbers, widths, strict=True)
    )


def _speeds(speed: Rates | None) -> tuple[str, str, str, str]:
    if speed is None:
        return "-", "-", "-", "-"
    return f"{speed.started:.1f}", f"{speed.succeeded:.1f}", f"{speed.failed:.1f}", size(int(speed.bytes))


def _style(one: Reading) -> str:
    if one.state == SILENT:
        return "bold red"
    return "" if one.state == READY else "red"


def _phases(readings: Iterable[Reading], width: int) -> Iterator[Line]:
    for one in readings:
        if not one.accounts:
            continue
        loads = [f"{phase} {load.rooms} ({age(load.oldest)})" for phase, load in one.phases.items() if load.rooms]
        names = width - _NUMBERS
        wrapped = textwrap.wrap("  ".join(loads) or "idle", _NUMBERS)
        style = "yellow" if one.oldest > OLD_S else ("" if loads else "dim")
        for number, text in enumerate(wrapped):
            yield Line(f"{_name(one.name, names - 1) if number == 0 else '':<{names}}{text}", style)


def _reasons(readings: Sequence[Reading], before: Before) -> Iterator[Line]:
    total: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    new: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
    for one in readings:
        if one.role in total:
            total[one.role].update(one.failed_by_reason)
            new[one.role].update(new_failures(before.get(one.name), one))
    for reason, _ in sum(total.values(), Counter[str]()).most_common():
        cells = [_count(total[role][reason], new[role][reason]) for role in ROLES]
        fresh = any(new[role][reason] for role in ROLES)
        yield Line(f"  {reason:<38}{cells[0]:>14}{cells[1]:>14}", "red" if fresh else "")


def _count(total: int, new: int) -> str:
    return f"+{new}  {total}" if new else str(total)


def _peers(readings: Iterable[Reading], width: int) -> Iterator[Line]:
    for one in readings:
        for peer in one.peers:
            who = _name(f"{_name(one.name, 17)} > {peer.address}", width - 42)
            heard = "never" if peer.heard is None else f"{age(peer.heard)} ago"
            numbers = f"live {peer.live:<4}ok {peer.succeeded:<5}failed {peer.failed:<5}{heard}"
            yield Line(f"  {who:<{width - 41}}{numbers}", "yellow" if peer.trouble else "")
            if peer.trouble:
                yield Line(f"      {peer.trouble}", "yellow")


def _rooms(rooms: Iterable[LiveRoom]) -> Iterator[Line]:
    for room in sorted(rooms, key=lambda room: -room.age)[:ROOMS]:
        ages = f"{age(room.phase_age):>7} of {age(room.age):<6}"
        text = f"  {room.phase:<14}{ages} {_name(room.server, 23)} > {room.peer or '-'}"
        yield Line(text, "yellow" if room.age > OLD_S else "")
        yield Line(f"      room {room.room}  rid {room.rid or '-'}", "dim")


def _name(text: str, width: int) -> str:
    """What tells servers apart is at both ends: the role, and the port."""
    text = _cut(text, 1 << 20)
    ends = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - ends]}~{text[-ends:]}"


def _cut(text: str, width: int) -> str:
    # A request's id is a client's own words: what moves a cursor must not reach the terminal.
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= width else text[: width - 1] + "~"
