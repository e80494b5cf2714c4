"""Reads a KV manager, of ours or of upstream's, for a rank's status routes; answered by the endpoint's threads."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.disaggregation.reliable import (
    incarnation,
    status_peers,
    status_rooms,
    status_scheduler,
    status_settings,
    watchdog_stacks,
)
from sglang.srt.disaggregation.reliable.control import ThreadState
from sglang.srt.disaggregation.reliable.endpoint import Asked, Route, Shared
from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.query import room_query
from sglang.srt.disaggregation.reliable.search import RoomFilter, find_rooms
from sglang.srt.disaggregation.reliable.status import Moment, Numbers, Speaker, status
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.status_peers import Decode, PrefillRank
from sglang_pd import environ
from sglang_pd.cluster import procfs
from sglang_pd.status import PEERS, ROOMS, STACKS, STATUS
from sglang_pd.version import __version__

# Of upstream's manager.
COORDINATES = ("attn_tp_rank", "attn_tp_size", "attn_cp_rank", "attn_cp_size", "attn_dp_rank", "pp_size")


def routes(
    manager: Any,
    rank: str,
    coordinates: Mapping[str, int | None],
    threads: Callable[[], Mapping[str, ThreadState]],
    loop_age_s: Callable[[], float | None],
) -> dict[str, Route]:
    """By path. ``rank``: its name in its server; ``coordinates``: what its queue knows of its place; ``threads``, and
    ``loop_age_s``, in seconds: asked for each answer."""
    own = procfs.identify(os.getpid())
    assert own is not None, "this process runs"
    reader = Reader(manager) if hasattr(manager, "accounts") else None
    speaker = speaker_of(manager, rank, coordinates, time.time() - procfs.age_s(own))

    def say_status() -> dict[str, Any]:
        now = moment()
        numbers = None if reader is None else reader.numbers(now)
        scheduler = status_scheduler.turns.entry(now.monotonic)
        return status(speaker, now, procfs.age_s(own), threads(), loop_age_s(), numbers, scheduler, overlap())

    def list_rooms(text: str) -> dict[str, Any]:
        query = room_query(text, Role(speaker.role))
        found = None if reader is None else find_rooms(reader.ledger, query.wanted, query.limit + 1)
        return status_rooms.listing(speaker, moment(), query, found)

    def say_peers() -> dict[str, Any]:
        return status_peers.unknown(speaker, moment()) if reader is None else reader.peers(speaker)

    def say_stacks() -> dict[str, Any]:
        stacks, age = watchdog_stacks.read(), loop_age_s()
        main = next(stack for stack in stacks if stack.main)
        return {
            **speaker.head("stacks", moment()),
            "loop_age_seconds": None if age is None else round(age, 3),
            "place": str(watchdog_stacks.place_of(main.frames)),
            "frame": str(main.frames[0]) if main.frames else None,
            "stacks": [stack.entry() for stack in stacks],
        }

    return {STATUS: Shared(say_status), ROOMS: Asked(list_rooms), PEERS: Shared(say_peers), STACKS: say_stacks}


def overlap() -> dict[str, Any] | None:
    """How our DeepSeek-V4 attention overlaps; None where it is not loaded, for which this is no reason to load it."""
    module = sys.modules.get("sglang.srt.layers.attention.dsv4_sm120.overlap")
    return None if module is None else dict(module.state())


def moment() -> Moment:
    return Moment(time.time(), time.monotonic())


def speaker_of(manager: Any, rank: str, coordinates: Mapping[str, int | None], started_at: float) -> Speaker:
    accounts = getattr(manager, "accounts", None)
    ip, port = getattr(manager, "local_ip", None), getattr(manager, "rank_port", None)
    return Speaker(
        role=manager.disaggregation_mode.value,
        rank=rank,
        pid=os.getpid(),
        started_at=started_at,
        incarnation=None if accounts is None else incarnation.mine(),
        versions={"sglang": _version("sglang"), "sglang-pd": __version__, "nixl": _version("nixl")},
        environment=environ.given(),
        classes=type(manager).__name__,
        speaks=None if accounts is None else accounts.speaks,
        agent=getattr(getattr(manager, "agent", None), "name", None),
        address=None if ip is None or port is None else f"{ip}:{port}",
        coordinates={**{name: getattr(manager, name, None) for name in COORDINATES}, **coordinates},
        settings=status_settings.settings(getattr(manager, "server_args", None)),
        transport=status_settings.transport(manager),
    )


class Reader:
    """``manager`` is a ``ReliableKVManager``. Takes no lock but for a moment, whatever the scheduler does."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.ledger = manager.accounts.ledger

    def numbers(self, now: Moment) -> Numbers:
        manager = self._manager
        return Numbers(
            counts=self.ledger.counts(),
            messages=manager.messages.snapshot(),
            reconnects=manager.reconnects.snapshot(),
            held=manager.quarantine.counts(),
            lanes=lanes_of(manager, now.monotonic),
            stalls=manager.watchdog.entry(now),
        )

    def peers(self, speaker: Speaker) -> dict[str, Any]:
        records = find_rooms(self.ledger, RoomFilter(), limit=sys.maxsize)
        if self.ledger.role is Role.PREFILL:
            refused = self._manager.prefill.peers.refusals()
            return status_peers.of_prefill(speaker, moment(), self._decodes(), refused, records)
        layouts = dict(self._manager.prefill_info_table)
        return status_peers.of_decode(speaker, moment(), layouts, self._prefill_ranks(), records)

    def _decodes(self) -> dict[str, Decode]:
        manager = self._manager
        # Where a room's metadata came from; other threads change these, so each is copied in one step.
        senders = [list(infos) for room, infos in list(manager.transfer_infos.items()) if self.ledger.phase(room)]
        return {
            agent: Decode(
                info=info,
                protocol=manager.prefill.peers.protocol(agent),
                link=manager.transport.links.state(agent),
                absent=self._is_absent(info.endpoint, info.dst_port),
                live=sum(agent in agents for agents in senders),
            )
            for agent, info in list(manager.decode_kv_args_table.items())
        }

    def _prefill_ranks(self) -> dict[str, list[PrefillRank]]:
        found: dict[str, dict[str, PrefillRank]] = {}
        for key, infos in list(self._manager.connection_pool.items()):
            # Upstream's key: the bootstrap address, then the rank's coordinates.
            ranks = found.setdefault(key.rsplit("_", 3)[0], {})
            for info in infos:
                ip, port = info["rank_ip"], int(info["rank_port"])
                address = f"{ip}:{port}"
                ranks[address] = PrefillRank(address, info.get("pp_rank"), self._is_absent(ip, port))
        return {bootstrap: [ranks[address] for address in sorted(ranks)] for bootstrap, ranks in found.items()}

    def _is_absent(self, ip: str, port: int) -> bool:
        return bool(self._manager.outbox.is_absent(endpoint(ip, port)[0]))


def lanes_of(manager: Any, now: float) -> list[Lane]:
    """Prefill's lanes at the monotonic time ``now``; a decode has none."""
    return manager.transport.lanes(now) if manager.accounts.ledger.role is Role.PREFILL else []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
