"""Looks again and again, and shows what was seen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sglang_pd.top import screen
from sglang_pd.top.reading import READY, Answers, Reading, read
from sglang_pd.top.screen import Line


class View:
    """The last two looks. ``ask`` gives the answers of all servers."""

    def __init__(self, ask: Callable[[], Sequence[Answers]], clock: Callable[[], float] = time.time) -> None:
        self._ask = ask
        self._clock = clock
        self._at = 0.0
        self._before: list[Reading] = []
        self._now: list[Reading] = []

    @property
    def well(self) -> bool:
        """Whether all servers were ready."""
        return all(one.state == READY for one in self._now)

    def look(self) -> None:
        self._before, self._now = self._now, [read(one) for one in self._ask()]
        self._at = self._clock()

    def lines(self, width: int = screen.WIDTH) -> list[Line]:
        return screen.lines(self._now, {one.name: one for one in self._before}, self._at, width)


def print_once(view: View, out: TextIO) -> None:
    """With colours where ``out`` is a terminal."""
    console = Console(file=out, highlight=False, width=None if out.isatty() else screen.WIDTH)
    for line in view.lines(console.width):
        console.print(Text(line.text, style=line.style), no_wrap=True, overflow="crop", crop=False)


def show(view: View, interval_s: float) -> None:
    """Until Ctrl-C. Where there is no terminal, one view after the other."""
    if not sys.stdout.isatty():
        while True:
            view.look()
            print_once(view, sys.stdout)
            sys.stdout.flush()
            time.sleep(interval_s)
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            view.look()
            picture = Text(no_wrap=True, overflow="crop")
            for line in screen.fitted(view.lines(console.width), console.height):
                picture.append(line.text + "\n", style=line.style)
            picture.right_crop()
            live.update(picture, refresh=True)
            time.sleep(interval_s)
