"""Rooms that one side has, and the other did not list: the other is asked for them by number.

A server lists the last rooms that ended; on a busy one, a room that ended a minute ago is not among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang_pd.doctor.evidence import Reply, Server
from sglang_pd.doctor.fetch import get
from sglang_pd.doctor.shapes import objects, rooms
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.doctor.trim import trimmed

# Of each server so many rooms: those that have been in their phase for the longest.
MOST = 8
# A room that is younger may only not have been listed yet.
OLD_S = 1.0


def path_of(room: int) -> str:
    return f"/pd/rooms?room={room}"


def unmatched(server: Server, others: Sequence[Server]) -> list[int]:
    """Rooms of ``server`` that none of ``others`` lists: live ones and failed ones, the oldest phase first; pure."""
    known = {entry["room"] for one in others for entry in entries(one)}
    lonely: dict[int, float] = {}
    for entry in entries(server):
        timeline = objects(entry, "timeline")
        age = float(timeline[-1].get("seconds") or 0.0) if timeline else 0.0
        wanted = (entry.get("state") == "live" and age > OLD_S) or entry.get("outcome") == "failed"
        if wanted and entry["room"] not in known:
            lonely[entry["room"]] = max(age, lonely.get(entry["room"], 0.0))
    return sorted(lonely, key=lambda room: -lonely[room])[:MOST]


def entries(server: Server) -> Iterator[dict[str, Any]]:
    """Every room that a server listed."""
    for path, reply in server.replies.items():
        if path.startswith("/pd/rooms") and reply.ok:
            yield from rooms(reply.body)


def ask(servers: Sequence[Server], keys: Mapping[str, str | None], deadline: Deadline) -> list[Server]:
    """The same servers, with what they say of each other's rooms. ``keys``: for their APIs, by name."""
    tasks: dict[tuple[str, str], Task[Reply]] = {}
    for server in servers:
        others = [one for one in servers if {one.role, server.role} == {"prefill", "decode"}]
        for room in unmatched(server, others):
            for one in others:
                # One whose list was answered, and only so, can say that it has no such room.
                if one.url and any(path.startswith("/pd/rooms") and reply.ok for path, reply in one.replies.items()):
                    path = path_of(room)
                    tasks[one.name, path] = Task(get, one.url, path, deadline, keys.get(one.name))
    found: dict[str, dict[str, Reply]] = {}
    for (name, path), task in tasks.items():
        try:
            found.setdefault(name, {})[path] = trimmed(task.result(deadline))
        except TimeoutError:
            found.setdefault(name, {})[path] = Reply(path, problem="no answer in time")
    return [replace(one, replies={**one.replies, **found.get(one.name, {})}) for one in servers]
