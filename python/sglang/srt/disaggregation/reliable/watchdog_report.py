"""What the watchdog tells of a stall: a JSON object for a file, and a block of lines for the log; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from sglang.srt.disaggregation.reliable import status_rooms
from sglang.srt.disaggregation.reliable.report import PLAIN, UNKNOWN
from sglang.srt.disaggregation.reliable.room import RoomRecord
from sglang.srt.disaggregation.reliable.status import Moment
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.watchdog import Stall
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Rank
from sglang.srt.disaggregation.reliable.watchdog_stacks import Stack

MARK = "PD stall: "
VERSION = 1
# Rooms in a report, the oldest of each group that stalls first; and of those, how many in the log.
MOST_ROOMS, LOGGED_ROOMS = 50, 5
LOGGED_FRAMES = 12
# Whose process does nothing else: holding it for a moment, which native frames take, costs nothing.
WANT_NATIVE = frozenset({Cause.LOOP_WEDGED, Cause.RANK_OUT_OF_STEP})


@dataclass(frozen=True)
class Scene:
    """Everything that was gathered. ``stalls``: those that are told now; ``live``: every live room. ``status``,
    ``peers``: this rank's own answers. ``native``: py-spy's text, or None and ``native_problem``."""

    now: Moment
    stalls: Sequence[Stall]
    live: Sequence[RoomRecord]
    status: Mapping[str, Any]
    peers: Mapping[str, Any]
    own: Rank
    others: Sequence[Rank]
    lanes: Sequence[Lane]
    stacks: Sequence[Stack]
    native: str | None
    native_problem: str | None


def rooms_of(scene: Scene) -> list[RoomRecord]:
    """The rooms that are shown: the stuck ones, then the oldest of the others, none twice."""
    found: dict[int, RoomRecord] = {}
    oldest = sorted(scene.live, key=lambda room: room.timeline[0][1])
    for room in [*_in_turn([stall.rooms for stall in scene.stalls]), *oldest]:
        if len(found) == MOST_ROOMS:
            break
        found.setdefault(room.generation, room)
    return list(found.values())


def body(scene: Scene) -> dict[str, Any]:
    """The content of the file."""
    status = dict(scene.status)
    return {
        "schema": {"name": "sglang-pd/stall", "version": VERSION},
        **{name: status[name] for name in ("role", "rank", "pid", "at")},
        "stalls": [stall_entry(stall, scene.now) for stall in scene.stalls],
        "rooms": [status_rooms.entry(room, scene.now) for room in rooms_of(scene)],
        "live_rooms": len(scene.live),
        "ranks": [asdict(rank) for rank in (scene.own, *scene.others)],
        "stacks": [stack.entry() for stack in scene.stacks],
        "native_stacks": {"text": scene.native, "problem": scene.native_problem},
        "status": status,
        "peers": dict(scene.peers),
    }


def stall_entry(stall: Stall, now: Moment) -> dict[str, Any]:
    """A stall, in a report and in ``/pd/status``."""
    return {
        "phase": str(stall.group.phase),
        "peer": stall.group.peer,
        "cause": str(stall.diagnosis.cause),
        "text": stall.diagnosis.text,
        "rooms": len(stall.rooms),
        "since_at": now.of(stall.since),
        "seconds": round(now.monotonic - stall.since, 3),
    }


def block(scene: Scene, file: str) -> str:
    """The lines for the log; ``file``: where the rest is, or why it is nowhere."""
    causes = ",".join(dict.fromkeys(str(stall.diagnosis.cause) for stall in scene.stalls))
    lines = [f"{MARK}role={scene.status['role']} rank={scene.status['rank']} cause={causes} report={file}"]
    lines += [_of_stall(stall, scene.now) for stall in scene.stalls]
    lines += [_of_room(room) for room in rooms_of(scene)[:LOGGED_ROOMS]]
    lines += [_of_lane(lane) for lane in scene.lanes if lane.busy]
    held = scene.status.get("quarantine") or {}
    lines.append(f"quarantine: {held.get('rooms', 0)} rooms, {held.get('pages', 0)} pages")
    down = [f"{name} ({state['last_error']})" for name, state in scene.status["threads"].items() if not state["up"]]
    lines.append(f"threads down: {', '.join(down) or 'none'}")
    for stack in scene.stacks:
        if stack.main:
            age = "not known" if scene.own.loop_age_s is None else f"{scene.own.loop_age_s:.1f} s old"
            lines.append(f"scheduler's loop: {age}; its thread, innermost first, place={scene.own.place}:")
            lines += [f"  {frame}" for frame in stack.frames[:LOGGED_FRAMES]]
    return "\n  ".join(lines)


def _of_stall(stall: Stall, now: Moment) -> str:
    peer = "" if stall.group.peer is None else f" with {stall.group.peer}"
    still = now.monotonic - stall.since
    return (
        f"{stall.group.phase}{peer}: {len(stall.rooms)} rooms, nothing moved for {still:.1f} s: {stall.diagnosis.text}"
    )


def _of_room(room: RoomRecord) -> str:
    rid = UNKNOWN if room.rid is None else quote(room.rid, safe=PLAIN, errors="surrogatepass")
    phases = " ".join(f"{phase}_s={seconds:.3f}" for phase, seconds in room.phase_seconds().items())
    peer = UNKNOWN if room.peer is None else room.peer
    return f"room {room.room}: rid={rid} peer={peer} pages={room.pages} bytes={room.bytes} {phases}"


def _of_lane(lane: Lane) -> str:
    return (
        f"lane to {', '.join(lane.addresses or lane.agents)}: queued {lane.queued} ({lane.queued_bytes} bytes), "
        f"in flight {lane.in_flight} ({lane.in_flight_bytes} bytes), stalled {lane.stalled}, "
        f"oldest {lane.oldest_seconds:.1f} s, looked {lane.looked_seconds:.1f} s ago"
    )


def _in_turn(groups: Iterable[Sequence[RoomRecord]]) -> Iterable[RoomRecord]:
    """The first of each, then the second of each, ..."""
    groups = list(groups)
    for position in range(max(map(len, groups), default=0)):
        for group in groups:
            if position < len(group):
                yield group[position]
