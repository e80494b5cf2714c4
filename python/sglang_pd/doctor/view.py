"""One server as rules see it: what its ranks, rooms, load and log say, whichever way the evidence came; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from sglang_pd.doctor.evidence import Process, Reply, Server
from sglang_pd.doctor.logged import LogFailure, failures, time_of
from sglang_pd.doctor.paths import INFO, LIVE, LOADS, NOT_ASKED, PEERS, READY, STATUS
from sglang_pd.doctor.processes import SCHEDULER, flag
from sglang_pd.doctor.seen import Rank, Room
from sglang_pd.doctor.shapes import field, objects

# Fields of an answer that are read further; null is as good as not there.
KINDS = {
    **dict.fromkeys(("threads", "environment", "settings", "scheduler", "coordinates", "stalls", "quarantine"), dict),
    **dict.fromkeys(("peers", "refused", "lanes"), list),
}


class View:
    """``server``: its evidence; ``at``: when that was gathered; ``utc_offset``: of the times in its log."""

    def __init__(self, server: Server, at: float, utc_offset: float):
        self.server = server
        self.name = server.name
        self.role = server.role
        self.at = at
        self.utc_offset = utc_offset

    def body(self, path: str, later: bool = False) -> Any:
        """What was answered there; None where nothing was."""
        reply = (self.server.later if later else self.server.replies).get(path)
        return reply.body if reply is not None and reply.ok else None

    @property
    def asked(self) -> list[Reply]:
        """The replies of the server itself; of those that were asked."""
        return [
            one
            for one in self.server.replies.values()
            if not (one.problem or "").startswith(NOT_ASKED) and not (one.ok and one.problem is not None)
        ]

    @property
    def answers(self) -> bool:
        """Whether its own port answered anything at all."""
        return any(one.status is not None for one in self.asked)

    @property
    def wants_key(self) -> bool:
        return any(one.status in (401, 403) for one in self.asked)

    @cached_property
    def ranks(self) -> list[Rank]:
        status, peers = self._ranks(STATUS), self._ranks(PEERS)
        reply = self.server.replies.get(READY)
        # It needs no key, and says a little; with 503 too.
        ready = _by_rank(reply.body) if reply is not None else {}
        return [
            Rank(
                name,
                (status.get(name) or ready[name])["pid"],
                status[name].get("problem") if name in status else None,
                status.get(name, {}).get("said") or ready.get(name, {}).get("said") or {},
                peers.get(name, {}).get("said") or {},
            )
            for name in sorted({*status, *ready})
        ]

    def _ranks(self, path: str, later: bool = False) -> dict[str, Any]:
        return _by_rank(self.body(path, later), dict if path == STATUS else list)

    @property
    def speaking(self) -> list[Rank]:
        """Ranks that keep accounts, each room once."""
        return [one for one in self.ranks if one.status.get("speaks")]

    @property
    def keeps_accounts(self) -> bool:
        """Whether this server knows its rooms: not with upstream's classes, and not where it does not answer."""
        return bool(self.speaking)

    @property
    def upstreams_classes(self) -> bool:
        """Whether it is known to transfer with upstream's classes."""
        known = [one.status["classes"] for one in self.ranks if "classes" in one.status]
        if known:
            return not any("Reliable" in one for one in known)
        reply = self.server.replies.get(STATUS)
        return reply is not None and reply.status == 404

    @cached_property
    def rooms(self) -> list[Room]:
        """Each once, live ones first."""
        found: dict[tuple[int, int], Room] = {}
        for path in self.server.replies:
            if path.startswith("/pd/rooms"):
                for one in self._rooms(path):
                    found.setdefault((one.room, int(one.started_at * 10)), one)
        return sorted(found.values(), key=lambda one: (not one.live, one.started_at))

    def _rooms(self, path: str, later: bool = False) -> Iterator[Room]:
        ranks = self._ranks(path, later)
        for name in sorted(ranks, key=lambda name: name not in {one.name for one in self.speaking}):
            for one in (ranks[name].get("said") or {}).get("rooms") or []:
                if isinstance(one, dict) and isinstance(one.get("room"), int):
                    yield Room.of(self.name, one)

    @cached_property
    def live(self) -> list[Room]:
        return [one for one in self.rooms if one.live]

    @property
    def all_live_listed(self) -> bool:
        """Whether every live room is in :attr:`live`: each rank answered, and none had more to tell."""
        ranks = self._ranks(LIVE)
        return bool(ranks) and all(
            (one.get("said") or {}).get("rooms") is not None and not one["said"].get("truncated")
            for one in ranks.values()
        )

    @cached_property
    def unmoved(self) -> set[int]:
        """Live rooms that were in the same phase, with the same bytes, when they were asked for a second time; all live
        ones where nobody answered then."""
        if not self._ranks(LIVE, later=True):
            return {one.room for one in self.live}
        again = {one.room: one for one in self._rooms(LIVE, later=True)}
        return {
            one.room
            for one in self.live
            if one.room in again and (again[one.room].phase, again[one.room].bytes) == (one.phase, one.bytes)
        }

    def failed(self, reasons: frozenset[str] | None = None, within_s: float | None = None) -> list[Room]:
        """Rooms that are remembered to have failed, the last first."""
        found = [
            one
            for one in self.rooms
            if one.outcome == "failed"
            and (reasons is None or one.reason in reasons)
            and (within_s is None or (one.ended_at or 0.0) > self.at - within_s)
        ]
        return sorted(found, key=lambda one: -(one.ended_at or 0.0))

    @property
    def failed_by_reason(self) -> Counter[str]:
        """Since the process started."""
        found: Counter[str] = Counter()
        for rank in self.speaking:
            found.update((rank.status.get("rooms") or {}).get("failed_by_reason") or {})
        return found

    def ended(self, outcome: str, later: bool = False) -> int | None:
        """How many rooms ended so since the process started; None where nobody counts."""
        speaking = {one.name for one in self.speaking}
        said = [one.get("said") or {} for name, one in self._ranks(STATUS, later).items() if name in speaking]
        counted = [one["rooms"]["ended"].get(outcome, 0) for one in said if one.get("rooms")]
        return sum(counted) if counted else None

    @property
    def finished(self) -> int | None:
        """Rooms that ended well while we watched; None where nobody counts."""
        before, after = self.ended("success"), self.ended("success", later=True)
        return None if before is None or after is None else after - before

    def load(self, name: str, later: bool = False) -> float | None:
        """A number of ``/v1/loads``, added up over data-parallel ranks; None where it is not there."""
        body = self.body(LOADS, later)
        parts = [(one, field(one, "disaggregation"), field(one, "queues")) for one in objects(body, "loads")]
        values = [part[name] for of_one in parts for part in of_one if name in part]
        found = [one for one in values if isinstance(one, int | float)]
        return float(sum(found)) if found else None

    def queue(self, name: str, later: bool = False) -> float | None:
        """How many requests are in a queue of its schedulers (``waiting``, ``running``, ``prefill_bootstrap``,
        ``prefill_inflight``, ``decode_prealloc``, ``decode_retracted``, ``decode_transfer``); None where not known."""
        depths: dict[Any, float] = {}
        for one in self._ranks(STATUS, later).values():
            said = one.get("said") or {}
            depth = ((said.get("scheduler") or {}).get("queues") or {}).get(name)
            if depth is not None:
                # Tensor-parallel ranks have the same requests.
                rank = (said.get("coordinates") or {}).get("dp_rank")
                depths[rank] = max(depths.get(rank, 0.0), float(depth))
        if depths:
            return sum(depths.values())
        named = {"waiting": "num_waiting_reqs", "running": "num_running_reqs"}
        return self.load(named.get(name, f"{name}_queue_reqs"), later)

    @property
    def computed(self) -> bool | None:
        """Whether a batch ran between the two looks, by whatever counts batches or tokens; None where nothing does."""
        pairs = [
            (self.load(name), self.load(name, later=True))
            for name in ("total_prefill_uncached_tokens", "total_prefill_busy_us", "num_used_tokens")
        ]
        first, second = self._ranks(STATUS), self._ranks(STATUS, later=True)
        pairs += [(_batches(first[name]), _batches(second[name])) for name in first if name in second]
        known = [one != other for one, other in pairs if one is not None and other is not None]
        return any(known) if known else None

    @property
    def stalls(self) -> list[Mapping[str, Any]]:
        """What its watchdog sees at this moment: requests there, and nothing moves."""
        return [one for rank in self.ranks for one in (rank.status.get("stalls") or {}).get("open") or []]

    def setting(self, name: str) -> Any:
        """Of ``/server_info``; None where it is not known."""
        body = self.body(INFO)
        return body.get(name) if isinstance(body, dict) else None

    @property
    def main(self) -> Process | None:
        return self.server.processes[0] if self.server.processes else None

    @property
    def schedulers(self) -> list[Process]:
        return [one for one in self.server.processes or [] if one.title.startswith(SCHEDULER)]

    def process(self, pid: int) -> Process | None:
        return next((one for one in self.server.processes or [] if one.pid == pid), None)

    @property
    def started_at(self) -> float | None:
        """When its schedulers started, by whoever knows; the launcher's start where nobody does."""
        said = [one.status["started_at"] for one in self.ranks if one.status.get("started_at")]
        seen = [one.started_at for one in self.schedulers] or ([self.main.started_at] if self.main else [])
        return min(said or seen, default=None)

    @property
    def bootstrap_port(self) -> int | None:
        given = flag(self.main.command, "--disaggregation-bootstrap-port") if self.main else None
        port = self.setting("disaggregation_bootstrap_port") or given
        return int(port) if port is not None and str(port).isdigit() else None

    @property
    def ready_reasons(self) -> list[str]:
        """Why it says that it is not ready; empty where it is, or did not say."""
        reply = self.server.replies.get(READY)
        body = reply.body if reply is not None else None
        return [str(one) for one in body.get("reasons") or []] if isinstance(body, dict) else []

    @property
    def environment(self) -> dict[str, str]:
        """Of the running ranks, as they say themselves; else of the process."""
        for rank in self.ranks:
            told = (rank.status.get("settings") or {}).get("environment", rank.status.get("environment"))
            if told is not None:
                return {**(self.main.environment if self.main else {}), **told}
        return dict(self.main.environment) if self.main else {}

    @cached_property
    def log_lines(self) -> list[str]:
        log = self.server.log
        if log is None:
            return []
        return list(dict.fromkeys([*log.matched, *log.tail]))

    @cached_property
    def log_failures(self) -> list[LogFailure]:
        return failures(self.log_lines, self.utc_offset)

    @property
    def last_batch_at(self) -> float | None:
        """When a batch last ended, by its ranks; else when its log last told of one."""
        said = [
            rank.status["at"] - rank.status["scheduler"]["last_batch_seconds"]
            for rank in self.ranks
            if (rank.status.get("scheduler") or {}).get("last_batch_seconds") is not None
        ]
        log = self.server.log
        return max(said) if said else time_of(log.last_batch, self.utc_offset) if log and log.last_batch else None


def _by_rank(body: Any, rooms: type = list) -> dict[str, Any]:
    """What each rank said, of an answer of ``/pd``; what is of another shape is passed over. ``rooms``: the kind of the
    field of that name."""
    entries = [one for one in objects(body, "ranks") if "rank" in one]
    kinds = {**KINDS, "rooms": rooms}
    return {
        str(one["rank"]): {
            "pid": pid if isinstance(pid := one.get("pid"), int) else 0,
            "problem": None if one.get("problem") is None else str(one["problem"]),
            "said": _said(one.get("said"), kinds),
        }
        for one in entries
    }


def _said(said: Any, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    if not isinstance(said, dict):
        return None
    return {name: value for name, value in said.items() if isinstance(value, kinds.get(name, object))}


def _batches(rank: Mapping[str, Any]) -> float | None:
    return ((rank.get("said") or {}).get("scheduler") or {}).get("batches")
