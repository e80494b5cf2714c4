"""All servers of a deployment together: who is whose peer, and each room as both sides see it; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from sglang_pd.doctor.evidence import Gpu, Snapshot
from sglang_pd.doctor.finding import RoomRef
from sglang_pd.doctor.paths import WORKERS
from sglang_pd.doctor.seen import Room
from sglang_pd.doctor.shapes import objects
from sglang_pd.doctor.view import View

# Rooms that a finding names; it counts all.
NAMED = 8


@dataclass(frozen=True)
class Pair:
    """One room on both sides; a side that does not know it is None."""

    room: int
    prefill: Room | None
    decode: Room | None

    @property
    def rid(self) -> str | None:
        return next((one.rid for one in (self.prefill, self.decode) if one is not None and one.rid), None)

    @property
    def ref(self) -> RoomRef:
        return RoomRef(
            self.room,
            self.rid,
            self.prefill.words if self.prefill else None,
            self.decode.words if self.decode else None,
        )


class Case:
    """The evidence of a :class:`Snapshot`, to be judged."""

    def __init__(self, snapshot: Snapshot):
        self.snapshot = snapshot
        self.at = snapshot.at
        self.views = [View(one, snapshot.at, snapshot.utc_offset) for one in snapshot.servers]
        self.gateways = [one for one in self.views if one.role == "gateway"]
        self.servers = [one for one in self.views if one.role != "gateway"]
        self.prefills = [one for one in self.servers if one.role == "prefill"]
        self.decodes = [one for one in self.servers if one.role == "decode"]

    def others(self, view: View) -> list[View]:
        """The servers of the other role."""
        return self.decodes if view.role == "prefill" else self.prefills

    @cached_property
    def pairs(self) -> dict[int, Pair]:
        """Every room that somebody remembers, by its number; of one that was used again the last."""
        sides: dict[str, dict[int, Room]] = {"prefill": {}, "decode": {}}
        for view in self.servers:
            for one in sorted(view.rooms, key=lambda room: room.started_at):
                sides.setdefault(view.role or "", {})[one.room] = one
        numbers = {*sides["prefill"], *sides["decode"]}
        return {
            number: Pair(number, sides["prefill"].get(number), sides["decode"].get(number))
            for number in sorted(numbers)
        }

    def refs(self, rooms: Iterable[Room]) -> tuple[tuple[RoomRef, ...], int]:
        """Those rooms as both sides see them, the oldest first: the first few, and how many there are."""
        numbers = list(dict.fromkeys(one.room for one in sorted(rooms, key=lambda room: room.started_at)))
        return tuple(self.pairs[number].ref for number in numbers[:NAMED]), len(numbers)

    def peer_of(self, view: View, room: Room) -> View | None:
        """The server on the other side of a room; None where that cannot be told."""
        pair = self.pairs[room.room]
        other = pair.decode if view.role == "prefill" else pair.prefill
        if other is not None:
            return next((one for one in self.others(view) if one.name == other.server), None)
        return self.server_at(view, room.peer) if room.peer else None

    def server_at(self, view: View, address: str) -> View | None:
        """Which server of the other role ``view`` means by a peer's address."""
        host, _, text = address.rpartition(":")
        port = int(text) if text.isdigit() else 0
        others = self.others(view)
        by_word = [one for one in others if any(rank.status.get("address") == address for rank in one.ranks)]
        by_port = [one for one in others if port and (port in one.server.ports or port == one.bootstrap_port)]
        # One that says nothing of itself is the one that is left, where all others do.
        silent = [one for one in others if not any(rank.status.get("address") for rank in one.ranks)]
        left = silent if view.role == "prefill" and len(silent) == 1 else []
        found = by_word or by_port or left
        if len(found) > 1:
            # Prefills of several machines have the same bootstrap port as a rule.
            found = [one for one in found if urlsplit(one.server.url or "").hostname == host.strip("[]")]
        return found[0] if len(found) == 1 else None

    @property
    def workers(self) -> list[dict]:
        """What the gateways say of the servers behind them."""
        return [worker for one in self.gateways for worker in objects(one.body(WORKERS), "workers")]

    def gpus_of(self, view: View) -> list[Gpu]:
        """The GPUs that processes of this server hold memory on."""
        pids = {one.pid for one in view.server.processes or []}
        return [one for one in self.snapshot.gpus or [] if pids & set(one.pids)]

    @property
    def missing(self) -> list[str]:
        """What is not known, in words."""
        found = list(self.snapshot.gaps)
        for role, views in (("prefill", self.prefills), ("decode", self.decodes)):
            if not views:
                found.append(f"no {role} server was looked at")
        for view in self.servers:
            if view.wants_key and not view.keeps_accounts:
                found.append(f"{view.name} wants an API key: give it with --api-key-file")
            elif view.answers and not view.keeps_accounts:
                why = "it transfers with upstream's classes" if view.upstreams_classes else "its ranks did not answer"
                found.append(f"the rooms of {view.name}, and why any failed: {why}")
            if view.server.log is not None and view.server.log.problem:
                found.append(f"the log of {view.name}: {view.server.log.problem}")
            found += [
                f"stacks of pid {one.pid} of {view.name}: {one.stack_problem}"
                for one in view.server.processes or []
                if one.stack_problem
            ]
        return list(dict.fromkeys(found))
