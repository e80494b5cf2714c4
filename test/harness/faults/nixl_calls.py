"""Make calls of a NIXL agent fail, stall or wait; this runs in the agent's process.

injection = inject(agent, "transfer", Raise("nixlRemoteDisconnectError"), first=2, times=1)
...
injection.undo()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

ERRORS = (
    "nixlRemoteDisconnectError",
    "nixlBackendError",
    "nixlNotFoundError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlCancelledError",
    "nixlUnknownError",
)


class Effect(Protocol):
    """What a call does instead; ``call`` is the real one."""

    def __call__(self, call: Callable[[], Any]) -> Any: ...


@dataclass(frozen=True)
class Raise:
    """The call raises NIXL's error of this name, and does nothing."""

    error: str

    def __call__(self, call: Callable[[], Any]) -> Any:
        from nixl_cu13 import _bindings

        raise getattr(_bindings, self.error)(f"injected {self.error}")


@dataclass(frozen=True)
class Answer:
    """The call does nothing and returns this: "ERR", "PROC", "DONE"."""

    value: Any

    def __call__(self, call: Callable[[], Any]) -> Any:
        return self.value


@dataclass(frozen=True)
class Pretend:
    """The call is made, and returns this whatever came of it."""

    value: Any

    def __call__(self, call: Callable[[], Any]) -> Any:
        call()
        return self.value


@dataclass(frozen=True)
class Delay:
    """The call waits this long, and is then made."""

    seconds: float

    def __call__(self, call: Callable[[], Any]) -> Any:
        time.sleep(self.seconds)
        return call()


@dataclass(frozen=True)
class RaiseOurs:
    """The call raises what nobody foresaw."""

    text: str = "injected"

    def __call__(self, call: Callable[[], Any]) -> Any:
        raise SystemError(self.text)


class Injection:
    """``hits``: calls that were changed so far. Any thread may call the agent."""

    def __init__(self, agent: Any, method: str, effect: Effect, first: int, times: int | None) -> None:
        self._agent, self._method, self._effect = agent, method, effect
        self._first, self._times = first, times
        self._lock = threading.Lock()
        self._calls = self.hits = 0
        self._before = vars(agent).get(method)
        self._real = getattr(agent, method)
        setattr(agent, method, self._call)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._calls += 1
            hit = self._calls >= self._first and (self._times is None or self.hits < self._times)
            self.hits += hit
        if hit:
            return self._effect(lambda: self._real(*args, **kwargs))
        return self._real(*args, **kwargs)

    def undo(self) -> int:
        """Give the agent its method back; returns ``hits``."""
        if self._before is None:
            delattr(self._agent, self._method)
        else:
            setattr(self._agent, self._method, self._before)
        return self.hits


def inject(agent: Any, method: str, effect: Effect, first: int = 1, times: int | None = None) -> Injection:
    """From the ``first`` call of ``method`` on, ``times`` calls (None: all that follow) are the effect's."""
    return Injection(agent, method, effect, first, times)
