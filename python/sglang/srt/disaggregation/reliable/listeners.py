"""Who is told, and what happens when one of them fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Functions called one after the other, in the order in which they were added.

    One that raises keeps neither the others nor the caller from going on: it is logged with its traceback, and
    ``errors`` counts it. Add them before the first event; telling is safe from any thread.
    """

    def __init__(self, about: str):
        self._about = about
        self._functions: tuple[Callable[P, object], ...] = ()
        self._lock = threading.Lock()
        self.errors = 0

    def add(self, function: Callable[P, object]) -> None:
        self._functions = (*self._functions, function)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for function in self._functions:
            try:
                function(*args, **kwargs)
            except Exception:
                with self._lock:
                    self.errors += 1
                logger.exception("A listener of %s failed (%d so far): %s", self._about, self.errors, function)
