"""What one server says of itself, as numbers; pure. Durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

READY, NOT_READY, SILENT = "ready", "not ready", "silent"


@dataclass(frozen=True)
class Answers:
    """Of one server at the monotonic time ``at``: the bodies of ``/pd/ready``, ``/pd/status``, ``/pd/rooms`` and
    ``/pd/peers``, None where there was none. ``problem``: why, in words."""

    name: str
    role: str
    at: float
    ready: Any = None
    status: Any = None
    rooms: Any = None
    peers: Any = None
    problem: str | None = None


@dataclass(frozen=True)
class Totals:
    """Since the server started."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    aborted: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Load:
    """Of a phase: rooms in it, and how long the first of them has been there."""

    rooms: int
    oldest: float


@dataclass(frozen=True)
class Peer:
    """``heard``: seconds since a room last went on by what it sent, None where none did. ``trouble``: in words, empty
    for none."""

    address: str
    live: int
    succeeded: int
    failed: int
    heard: float | None
    trouble: str = ""


@dataclass(frozen=True)
class LiveRoom:
    """``age``: since it started; ``phase_age``: since it is in its phase."""

    server: str
    room: int
    rid: str | None
    peer: str | None
    phase: str
    age: float
    phase_age: float


@dataclass(frozen=True)
class Reading:
    """One server. ``processes``: of its ranks; others are another server at the same address. ``accounts``: whether it
    counts rooms at all. ``alarms``: what is wrong, in words."""

    name: str
    role: str
    at: float
    state: str
    processes: tuple[int, ...] = ()
    age: float | None = None
    accounts: bool = False
    totals: Totals = Totals()
    phases: Mapping[str, Load] = field(default_factory=dict)
    failed_by_reason: Mapping[str, int] = field(default_factory=dict)
    peers: tuple[Peer, ...] = ()
    rooms: tuple[LiveRoom, ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def live(self) -> int:
        return sum(load.rooms for load in self.phases.values())

    @property
    def oldest(self) -> float:
        return max((load.oldest for load in self.phases.values()), default=0.0)


def read(answers: Answers) -> Reading:
    """Everything that is missing in the answers is missing in the reading; nothing raises for it."""
    told = [one for one in _said(answers.status) if one.get("rooms") and one.get("speaks")]
    rooms = [one["rooms"] for one in told]
    ended = Counter[str]()
    by_reason = Counter[str]()
    for one in rooms:
        ended.update(one.get("ended", {}))
        by_reason.update(one.get("failed_by_reason", {}))
    ranks = _ranks(answers.status)
    return Reading(
        name=answers.name,
        role=answers.role,
        at=answers.at,
        state=_state(answers),
        processes=tuple(sorted(rank["pid"] for rank in ranks if "pid" in rank)),
        age=max((one["age_seconds"] for one in _said(answers.status) if "age_seconds" in one), default=None),
        accounts=bool(told),
        totals=Totals(
            started=sum(one.get("started", 0) for one in rooms),
            succeeded=ended["success"],
            failed=ended["failed"],
            aborted=ended["aborted"],
            bytes=sum(one.get("bytes", 0) for one in rooms),
        ),
        phases=_phases(rooms),
        failed_by_reason=dict(by_reason.most_common()),
        peers=tuple(_peers(_speaking(answers.peers, told))),
        rooms=tuple(_rooms(answers.name, _speaking(answers.rooms, told))),
        alarms=tuple(_alarms(answers, told)),
    )


def _ranks(body: Any) -> list[dict[str, Any]]:
    return body["ranks"] if isinstance(body, dict) and isinstance(body.get("ranks"), list) else []


def _said(body: Any) -> list[dict[str, Any]]:
    return [rank["said"] for rank in _ranks(body) if isinstance(rank.get("said"), dict)]


def _speaking(body: Any, told: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the ranks said that speak for the others of their server; each knows the same rooms."""
    speakers = {one["rank"] for one in told}
    return [one for one in _said(body) if one.get("rank") in speakers]


def _state(answers: Answers) -> str:
    if answers.status is None and answers.ready is None:
        return SILENT
    return READY if isinstance(answers.ready, dict) and answers.ready.get("ready") else NOT_READY


def _phases(rooms: Iterable[dict[str, Any]]) -> dict[str, Load]:
    found: dict[str, Load] = {}
    for one in rooms:
        for phase, load in one.get("live", {}).items():
            known = found.get(phase, Load(0, 0.0))
            found[phase] = Load(known.rooms + load["rooms"], max(known.oldest, load["oldest_age_seconds"]))
    return found


def _peers(said: Iterable[dict[str, Any]]) -> Iterator[Peer]:
    for one in said:
        for peer in one.get("peers") or ():
            ended, heard_at = peer["recently_ended"], peer["last_heard_at"]
            heard = None if heard_at is None else max(0.0, one["at"] - heard_at)
            yield Peer(
                peer["address"], peer["live_rooms"], ended["success"], ended["failed"], heard, ", ".join(_trouble(peer))
            )
        for refused in one.get("refused") or ():
            yield Peer(refused["agent"], 0, 0, 0, None, f"refused: {refused['text']}")


def _trouble(peer: dict[str, Any]) -> Iterator[str]:
    if peer.get("absent") or any(rank["absent"] for rank in peer.get("ranks", ())):
        yield "absent"
    connection = peer.get("connection") or {}
    if connection.get("healing"):
        yield "connection broken"
    elif connection.get("closed"):
        yield f"connection broke {connection['closed']}x"


def _rooms(server: str, said: Iterable[dict[str, Any]]) -> Iterator[LiveRoom]:
    for one in said:
        for room in one.get("rooms") or ():
            timeline = room["timeline"]
            phase_age = timeline[-1]["seconds"] if timeline else room["seconds"]
            yield LiveRoom(server, room["room"], room["rid"], room["peer"], room["phase"], room["seconds"], phase_age)


def _alarms(answers: Answers, told: Iterable[dict[str, Any]]) -> Iterator[str]:
    if answers.problem is not None:
        yield answers.problem
    if isinstance(answers.ready, dict):
        yield from answers.ready.get("reasons", ())
    for one in told:
        for stall in (one.get("stalls") or {}).get("open", ()):
            what = f"{stall['rooms']} rooms {stall['phase']}" + (f" with {stall['peer']}" if stall.get("peer") else "")
            yield f"stall: {what} for {stall['seconds']:.0f} s: {stall['cause']}"
        held = one.get("quarantine") or {}
        if held.get("pages"):
            yield f"quarantine: {held['pages']} pages, the first for {held['oldest_age_seconds']:.0f} s"
    if _said(answers.status) and not told:
        yield "no accounts: stock classes (SGLANG_PD_RELIABLE=0, or another transfer backend)"
