"""Requests are there and nothing moves: which rooms that is said of, and when it is told; pure.

Rooms are looked at in groups: all of a phase where this side takes them in turn, those of one peer where they wait for
that peer. A group stands still since the last of: a room of it went on to its next phase or succeeded, bytes of it
moved, its first room entered. That another room *entered* is no movement, or a steady stream of requests would hide
that none gets on; that one failed or was aborted is none either. One room that is overtaken by others is not told: its
deadline ends it.

The scheduler's loop is a group of its own: where it does not come round, nothing does, also where no room is left.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, Phase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome
from sglang.srt.disaggregation.reliable.room import EndedRoom, RoomRecord
from sglang.srt.disaggregation.reliable.watchdog_cause import Diagnosis

# By role: phases of the two compare as text, and some have the same name.
OF_A_PEER: dict[Role, frozenset[Phase]] = {
    Role.PREFILL: frozenset({PrefillPhase.TRANSFERRING}),
    Role.DECODE: frozenset(DecodePhase) - {DecodePhase.ALLOCATING, DecodePhase.VERIFYING},
}
LOOP = "loop"
"""What stands for a phase where the scheduler's loop is meant."""

# A stall that goes on is told again after so many seconds.
REPEAT_S = 600.0
# Two reports of a process are so many seconds apart: what else stands still meanwhile is told then, if it still does.
SPACING_S = 10.0
# No limit that follows from a deadline is less, and nobody looks more often, in seconds.
LEAST_S, LEAST_PERIOD_S = 1.0, 0.1
# So many rooms of each peer are remembered that ended last, and no more peers than this.
KEPT_ROOMS, MOST_PEERS = 8, 1024


@dataclass(frozen=True)
class Group:
    """Rooms that get on, or do not, for the same reason. ``phase``: a phase, or :data:`LOOP`. ``peer``: as in a ledger,
    None for all."""

    phase: str
    peer: str | None = None


def group_of(role: Role, phase: Phase, peer: str | None) -> Group:
    return Group(phase, peer if phase in OF_A_PEER[role] else None)


class Departures:
    """When a room last left each group for the better, from the last rooms of each peer that ended. Any thread may tell
    and read; times are the ledger's.

    Telling is one step for each room that ends; what it means is worked out where somebody asks.
    """

    def __init__(self, peers: int = MOST_PEERS) -> None:
        self._lock = threading.Lock()
        self._last: dict[str | None, deque[EndedRoom]] = {}
        self._peers = peers

    def ended(self, room: EndedRoom) -> None:
        """For ``ledger.on_end``."""
        known = self._last.get(room.peer)
        if known is None:
            known = self._known(room.peer)
        known.append(room)

    def read(self) -> dict[Group, float]:
        with self._lock:
            rooms = [room for known in self._last.values() for room in list(known)]
        last: dict[Group, float] = {}
        for room in rooms:
            for group, at in departures(room):
                last[group] = max(at, last.get(group, at))
            if room.outcome is Outcome.SUCCESS:
                group = group_of(room.role, room.phase, room.peer)
                last[group] = max(room.at, last.get(group, room.at))
        return last

    def _known(self, peer: str | None) -> deque[EndedRoom]:
        with self._lock:
            if len(self._last) >= self._peers:
                # The peer that was first heard of: it may well be gone.
                del self._last[next(iter(self._last))]
            return self._last.setdefault(peer, deque(maxlen=KEPT_ROOMS))


def departures(room: RoomRecord) -> Iterable[tuple[Group, float]]:
    """The groups that a room has left behind for a later phase, and when."""
    for (phase, _), (_, left) in itertools.pairwise(room.timeline):
        yield group_of(room.role, phase, room.peer), left


@dataclass(frozen=True)
class Still:
    """A group in which nothing has moved ``since``: since a room of it ``moved`` last, None where that is not known, or
    since the first of its ``rooms`` entered. They stand in the order in which they entered."""

    group: Group
    since: float
    moved: float | None = None
    rooms: tuple[RoomRecord, ...] = ()


def stills(live: Iterable[RoomRecord], moved: Mapping[Group, float]) -> list[Still]:
    """Every group that has rooms, and since when it stands still. ``moved``: what is known besides the live rooms."""
    rooms: dict[Group, list[RoomRecord]] = {}
    last = dict(moved)
    for room in live:
        group = group_of(room.role, room.phase, room.peer)
        rooms.setdefault(group, []).append(room)
        moves = list(departures(room))
        # Decode notes a room's pages when it tells where they are, which is no movement of theirs.
        if room.role is Role.PREFILL and room.moved > room.timeline[-1][1]:
            moves.append((group, room.moved))
        for where, at in moves:
            last[where] = max(at, last.get(where, at))
    found = []
    for group, members in rooms.items():
        members.sort(key=lambda room: room.timeline[-1][1])
        entered = members[0].timeline[-1][1]
        moved_at = last.get(group)
        since = entered if moved_at is None else max(entered, moved_at)
        found.append(Still(group, since, moved_at, tuple(members)))
    return found


def soft_limits(role: Role, soft_s: float, deadlines: Mapping[Phase, float], write_s: float) -> dict[str, float]:
    """Seconds after which a group of each phase counts as stalled, well before something ends its rooms. ``soft_s``:
    at most. ``write_s``: how long a write may take. What has a second or two ends before anybody could say more."""
    found: dict[str, float] = {phase: min(soft_s, deadlines[phase] / 2) for phase in PHASES[role]}
    if role is Role.PREFILL:
        found[PrefillPhase.TRANSFERRING] = min(found[PrefillPhase.TRANSFERRING], write_s / 2)
    return {phase: max(seconds, min(soft_s, LEAST_S)) for phase, seconds in found.items()}


@dataclass(frozen=True)
class Stall:
    """A group that has stood still for too long, and why; ``since`` and ``found`` are times of the ledger's clock."""

    group: Group
    diagnosis: Diagnosis
    since: float
    found: float
    rooms: tuple[RoomRecord, ...]

    @property
    def key(self) -> tuple[str, str | None]:
        """Stalls with the same key are one matter, which is told once."""
        return self.diagnosis.cause, self.diagnosis.scope


@dataclass
class _Told:
    at: float
    group: Group


class Stalls:
    """Which stalls there are, and which of them are to be told now.

    ``limits``: seconds by phase, and for :data:`LOOP`. A matter that was told is not told again until the group that it
    was told of has moved, or after :data:`REPEAT_S`. A process that was stopped, or kept from running, has not looked:
    what stood still meanwhile counts from when it looks again.
    """

    def __init__(self, limits: Mapping[str, float], repeat_s: float = REPEAT_S, spacing_s: float = SPACING_S) -> None:
        self.limits = limits
        self.open: dict[Group, Stall] = {}
        self._repeat_s = repeat_s
        self._spacing_s = spacing_s
        self._told: dict[tuple[str, str | None], _Told] = {}
        self._last_report = float("-inf")
        self._looked: float | None = None
        self._awake = float("-inf")

    @property
    def period_s(self) -> float:
        """How often to look, in seconds."""
        return max(LEAST_PERIOD_S, min(1.0, min(self.limits.values()) / 5))

    @property
    def idle(self) -> bool:
        """Whether nothing is open, and nothing was told that is not over."""
        return not self.open and not self._told

    def rested(self, now: float) -> float:
        """Note that it is looked at now; returns for how many seconds too long nobody has, 0 as a rule."""
        looked, self._looked = self._looked, now
        pause = 0.0 if looked is None else now - looked - self.period_s
        if pause <= min(self.limits.values()) / 2:
            return 0.0
        self._awake = now
        return pause

    def look(
        self, now: float, found: Iterable[Still], moved: Mapping[Group, float], diagnose: Callable[[Still], Diagnosis]
    ) -> list[Stall]:
        """The stalls to report now, all in one report; those of groups that are not among ``found`` are over.

        ``moved``: when each group last moved, also one without rooms. ``diagnose`` is asked once a stall.
        """
        last = dict(moved)
        still = {}
        for one in found:
            if one.moved is not None:
                last[one.group] = one.moved
            if now - max(one.since, self._awake) >= self.limits[one.group.phase]:
                still[one.group] = one
        for group in [group for group in self.open if group not in still]:
            del self.open[group]
        for key, told in list(self._told.items()):
            if last.get(told.group, told.at) > told.at or now - told.at >= self._repeat_s:
                del self._told[key]
        for group, one in still.items():
            known = self.open.get(group)
            why = known.diagnosis if known else diagnose(one)
            self.open[group] = Stall(group, why, one.since, known.found if known else now, one.rooms)
        news = [stall for stall in self.open.values() if stall.key not in self._told]
        if not news or now - self._last_report < self._spacing_s:
            return []
        self._last_report = now
        for stall in news:
            self._told.setdefault(stall.key, _Told(now, stall.group))
        return news
