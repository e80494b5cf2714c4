"""What is remembered of rooms that have ended, within bounds; pure."""

from __future__ import annotations

from collections import OrderedDict, deque

from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom


class History:
    """The last ended rooms in full, and a tombstone for more of them: enough to know a late message for what it is.

    ``records``: how many are kept in full. ``tombstones``, ``tombstone_seconds``: how many room numbers are known to
    have ended, and for how long. Raises ``ValueError`` for a negative bound.
    """

    def __init__(self, records: int, tombstones: int, tombstone_seconds: float):
        if min(records, tombstones, tombstone_seconds) < 0:
            raise ValueError(f"negative bound: {records=} {tombstones=} {tombstone_seconds=}")
        self._records: deque[EndedRoom] = deque(maxlen=records)
        self._tombstones: OrderedDict[int, tuple[float, Reason]] = OrderedDict()
        self._most = tombstones
        self._seconds = tombstone_seconds

    def add(self, record: EndedRoom) -> None:
        self._records.append(record)
        self._tombstones[record.room] = record.at, record.reason
        self._tombstones.move_to_end(record.room)
        self.expire(record.at)

    def forget(self, room: int) -> None:
        """The number stands for a new room from now on."""
        self._tombstones.pop(room, None)

    def has_ended(self, room: int, now: float) -> bool:
        """Whether ``room`` is known to have ended, and was not started again."""
        return self.reason(room, now) is not None

    def reason(self, room: int, now: float) -> Reason | None:
        """Why ``room`` ended; None where that is not known, or it was started again."""
        self.expire(now)
        return self._tombstones[room][1] if room in self._tombstones else None

    def expire(self, now: float) -> None:
        """Drop the tombstones that are too many or too old. O(1) amortised: each is dropped once."""
        tombstones = self._tombstones
        while tombstones:
            oldest = next(iter(tombstones))
            if len(tombstones) <= self._most and tombstones[oldest][0] + self._seconds >= now:
                return
            del tombstones[oldest]

    def records(self) -> list[EndedRoom]:
        """Oldest first."""
        return list(self._records)

    def __len__(self) -> int:
        """Tombstones held."""
        return len(self._tombstones)
