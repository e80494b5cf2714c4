"""How a build says where it is, and how a terminal shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with a step's name, how much of it is done, and how much there is (0: not known).
Progress = Callable[[str, int, int], None]


def silent(step: str, done: int, total: int) -> None:
    """A progress that nobody sees."""


@contextmanager
def bars() -> Iterator[Progress]:
    """One bar per step, on stderr, so that stdout holds only the result."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    display = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(step: str, done: int, total: int) -> None:
        display.start()
        if step not in tasks:
            tasks[step] = display.add_task(step, total=None)
        display.update(tasks[step], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            display.stop()
