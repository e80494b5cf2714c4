"""A captured program as a picture in text: a column per stream, time downwards, an arrow per wait.

An operation stands in its stream's column. An arrow leads from the stream that is waited for to the one that waits;
where that need not be all that was launched there so far, the last operation that it must have done is named. A bar
marks a stream that was forked and is not joined yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sgl_kernel_sm120.streamcheck.graph import Edge, Lane, Operation
from sgl_kernel_sm120.streamcheck.source import called

BAR, START, RIGHT, LEFT, LINE = "│", "●", "▶", "◀", "─"


def label_of(operation: Operation) -> str:
    """What the program calls on the operation's line; the operation itself where the line calls nothing."""
    return (called(operation.site[0]) if operation.site else None) or operation.name


def drawn(
    entries: Iterable[Operation | Edge],
    streams: list[str],
    label: Callable[[Operation], str] = label_of,
    width: int = 20,
) -> str:
    """``entries`` of a graph, with the columns ``streams`` (by name, the first is where it starts), ``width`` each."""
    entries = list(entries)
    columns = {name: place for place, name in enumerate(streams)}
    last_join = _last_joins(entries)
    live = {streams[0]}
    rows = ["".join(name.ljust(width) for name in streams).rstrip()]
    previous: tuple[str, str] | None = None
    launched: dict[str, list[Operation]] = {name: [] for name in streams}
    for place, entry in enumerate(entries):
        if isinstance(entry, Operation):
            launched[entry.lane.name].append(entry)
            text = label(entry)
            if (entry.lane.name, text) != previous:
                rows.append(_cells(streams, live, {entry.lane.name: text}, width))
            previous = (entry.lane.name, text)
            continue
        previous = None
        live |= {entry.waiting.name, entry.awaited.name}
        arrow = _arrow(columns, live, entry.awaited, entry.waiting, width)
        rows.append(arrow + _after(entry, launched[entry.awaited.name], label))
        if last_join.get(entry.awaited.name) == place and entry.awaited.name != streams[0]:
            live.discard(entry.awaited.name)
    return "\n".join(rows)


def _after(edge: Edge, launched: list[Operation], label: Callable[[Operation], str]) -> str:
    """Which operation is waited for, where others were launched since."""
    if not launched or edge.tick >= launched[-1].tick:
        return ""
    awaited = [operation for operation in launched if operation.tick <= edge.tick]
    return f"   after {label(awaited[-1])}" if awaited else "   after nothing of it"


def _last_joins(entries: list[Operation | Edge]) -> dict[str, int]:
    """By stream: the place of the last wait for it, if nothing of it comes later."""
    found: dict[str, int] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, Edge):
            found[entry.awaited.name] = place
            found.pop(entry.waiting.name, None)
        else:
            found.pop(entry.lane.name, None)
    return found


def _cells(streams: list[str], live: set[str], texts: dict[str, str], width: int) -> str:
    cells = [texts.get(name, BAR if name in live else "")[: width - 1].ljust(width) for name in streams]
    return "".join(cells).rstrip()


def _arrow(columns: dict[str, int], live: set[str], awaited: Lane, waiting: Lane, width: int) -> str:
    row = list(_cells(list(columns), live, {}, width).ljust(width * len(columns)))
    start, stop = columns[awaited.name] * width, columns[waiting.name] * width
    for place in range(min(start, stop) + 1, max(start, stop)):
        row[place] = LINE
    row[start], row[stop] = START, RIGHT if start < stop else LEFT
    return "".join(row).rstrip()
