"""How often an answer is made anew for those who ask; pure."""

from __future__ import annotations

# Answers made anew each second in the long run, and so many at once before that.
RATE, BURST = 2.0, 5.0


class Ration:
    """A token bucket: who asks now and then always gets an answer of now, and a crowd shares one that is a moment old.

    ``rate``: answers a second, ``burst``: how many come at once after a rest. Times are monotonic seconds. Not safe for
    threads.
    """

    def __init__(self, rate: float = RATE, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = float("-inf")

    def take(self, now: float) -> bool:
        """Whether to make the answer anew."""
        left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        self._left = left - 1.0 if left >= 1.0 else left
        return left >= 1.0
