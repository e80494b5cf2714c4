"""Decode says again what prefill may have missed: a message over a connection that breaks, or to a process that is
replaced, is lost without a word.

A room's metadata is repeated until its end is known, and an abort until it is acknowledged: soon at first, then less
and less often. Prefill tells a repetition from a new room by its stamp, and answers with what it knows.
"""

from __future__ import annotations

import time
from typing import Any

# Seconds until the first repetition; each later one takes twice as long, up to the last.
FIRST_S, LAST_S = 0.5, 5.0
# How often it is looked for what is due, in seconds.
LOOK_S = FIRST_S / 4


class Reminders:
    """When a room's message is due again; pure. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.attempt = 0
        self._due: float | None = None
        self._pause = FIRST_S

    def sent(self, now: float) -> None:
        """A message was sent for the first time."""
        self.attempt, self._pause = 0, FIRST_S
        self._due = now + FIRST_S

    def heard(self) -> None:
        """Prefill has it: there is no hurry any more, but its answer may be lost as well."""
        self._pause = LAST_S

    def take(self, now: float) -> bool:
        """Whether the message is due; it is sent then."""
        if self._due is None or now < self._due:
            return False
        self.attempt += 1
        self._pause = min(2 * self._pause, LAST_S)
        self._due = now + self._pause
        return True


def remind_for_ever(manager: Any) -> None:
    """Decode's thread for it; ``manager`` is its ``ReliableKVManager``."""
    while True:
        time.sleep(LOOK_S)
        now = time.monotonic()
        for receiver in list(manager.watch.ends.values()):
            receiver.remind(now)
