"""The progress of a start: a table that moves on a terminal, a line per change elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.state import ClusterState
from sglang_pd.cluster.words import change_text, seconds_so_far

_STYLES = {Phase.READY: "green", Phase.FAILED: "bold red", Phase.STOPPED: "dim", Phase.STOPPING: "yellow"}
_MARKS = {Phase.READY: "✔", Phase.FAILED: "✘", Phase.STOPPED: "·"}


class Display(Protocol):
    """Shows a cluster's state from ``show`` to ``show``; a context manager around the time in which it draws."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, state: ClusterState) -> None: ...


class LineDisplay:
    """One line per change."""

    def __init__(self, out: TextIO):
        self._out = out
        self._seen: dict[str, tuple[Phase, str]] = {}

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.flush()

    def show(self, state: ClusterState) -> None:
        for process in state.processes:
            now = (process.phase, process.detail)
            if self._seen.get(process.name) != now:
                self._seen[process.name] = now
                print(change_text(process, process.phase, time.time()), file=self._out, flush=True)


class LiveDisplay:
    """A table that is drawn again several times a second; its last picture stays."""

    def __init__(self, console: Console):
        self._state: ClusterState | None = None
        self._spinners: dict[str, Spinner] = {}
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=8)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, state: ClusterState) -> None:
        self._state = state
        self._live.refresh()

    def _table(self) -> Table | Text:
        if self._state is None:
            return Text("starting the supervisor", style="dim")
        return table(self._state, time.time(), self._spinners)


def table(state: ClusterState, now: float, spinners: dict[str, Spinner]) -> Table:
    """The progress table; ``spinners`` keeps the moving ones from picture to picture. Fits 80 columns."""
    out = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    out.add_column(width=1)
    out.add_column(min_width=10, no_wrap=True)
    out.add_column(min_width=19, no_wrap=True)
    out.add_column(justify="right", min_width=8, no_wrap=True)
    out.add_column(no_wrap=True, overflow="ellipsis", style="dim")
    for process in state.processes:
        phase = process.phase
        mark: Spinner | Text = (
            Text(_MARKS[phase], style=_STYLES[phase]) if phase in _MARKS else _spinner(process.name, spinners)
        )
        out.add_row(
            mark,
            Text(process.name, style="bold"),
            Text(phase.value, style=_STYLES.get(phase, "cyan")),
            Text(f"{seconds_so_far(process, now):.1f} s"),
            Text(f"port {process.port}" + (f"  {process.detail}" if process.detail else "")),
        )
    return out


def _spinner(name: str, spinners: dict[str, Spinner]) -> Spinner:
    return spinners.setdefault(name, Spinner("dots", style="cyan"))


def create(out: TextIO | None = None) -> Display:
    """The display that suits ``out`` (default: standard output)."""
    out = out or sys.stdout
    return LiveDisplay(Console(file=out, highlight=False)) if out.isatty() else LineDisplay(out)
