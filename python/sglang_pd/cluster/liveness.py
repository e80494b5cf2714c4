"""Servers that stand still: a process that is stopped, or thrashes, keeps its connections open and answers nothing.

The gateway waits for whoever has one of its requests. So the requests of such a server hang as long as it does, unless
its connections close: then the gateway sends them elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

EVERY_S = 1.0
ANSWER_S = 1.0


@dataclass
class Liveness:
    """Asks servers in turn, now and then, and tells which have not answered for ``after_s`` seconds.

    ``answers``: whether the server of that name answers anything now. One that is asked for the first time counts from
    then on, so a server that has just started is to be left out until it is ready.
    """

    after_s: float
    answers: Callable[[str], bool]
    clock: Callable[[], float] = time.monotonic
    _answered: dict[str, float] = field(default_factory=dict)
    _next: float = 0.0

    def hung(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that hang. Takes as long as asking takes, and asks at most once a second."""
        now = self.clock()
        if now < self._next:
            return []
        known = self._answered
        self._answered = {}
        found = []
        for name in names:
            last = known.get(name, now)
            if self.answers(name):
                last = self.clock()
            elif self.clock() - last > self.after_s:
                found.append(name)
                continue
            self._answered[name] = last
        self._next = self.clock() + EVERY_S
        return found
