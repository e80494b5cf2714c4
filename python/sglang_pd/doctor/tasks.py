"""Work at the same time, and no longer than a deadline: what hangs is left behind and keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deadline:
    """``seconds`` from now, by the monotonic clock."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until it; 0 once it has passed."""
        return max(0.0, self._end - time.monotonic())


class Task(Generic[T]):
    """``work`` in a thread of its own, which does not keep this process from ending."""

    def __init__(self, work: Callable[..., T], *arguments: Any):
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(work, arguments), daemon=True).start()

    def _run(self, work: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        try:
            self._future.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._future.set_exception(error)

    def result(self, deadline: Deadline) -> T:
        """What the work returned, or raised. Raises ``TimeoutError`` where it is not done by the deadline."""
        try:
            return self._future.result(deadline.left)
        except NotDone:
            if self._future.done():
                raise
            raise TimeoutError(f"not done within {deadline.seconds:g} s") from None
