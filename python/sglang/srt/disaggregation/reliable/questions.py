"""Questions that others answer in their own time: each asked once, on a thread of its own, waited for by nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class Questions:
    """Any thread may ask. A question that is asked again while it is open, or was not :meth:`forget`-ted, is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, Future[Any]] = {}

    def ask(self, key: Hashable, find_out: Callable[[], Any]) -> Future[Any]:
        """The answer of the question ``key``, now or later: what ``find_out`` returns or raises. It runs on a thread of
        its own, and should end by itself: it cannot be stopped."""
        with self._lock:
            answer = self._open.get(key)
            if answer is not None:
                return answer
            answer = self._open[key] = Future()
        threading.Thread(target=_answer, args=(answer, find_out), name=f"ask-{key}", daemon=True).start()
        return answer

    def take(self, key: Hashable) -> Future[Any] | None:
        """The answer, forgotten with this: who asks again wants a new one. None where it is not there yet."""
        with self._lock:
            answer = self._open.get(key)
            return self._open.pop(key) if answer is not None and answer.done() else None

    def forget(self, key: Hashable, answer: Future[Any]) -> None:
        """Ask anew the next time, unless somebody has already."""
        with self._lock:
            if self._open.get(key) is answer:
                del self._open[key]


def _answer(answer: Future[Any], find_out: Callable[[], Any]) -> None:
    try:
        answer.set_result(find_out())
    except BaseException as error:  # noqa: BLE001 (raised for whoever looks at the answer)
        answer.set_exception(error)
