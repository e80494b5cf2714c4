"""Evidence for the doctor, made up: servers that are well unless a test says what is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import Gpu, Log, Process, Reply, Server, Snapshot
from sglang_pd.doctor.finding import Finding
from sglang_pd.doctor.paths import ENDED, INFO, LIVE, LOADS, PEERS, READY, STATUS, WORKERS

AT = 1_800_000_000.0
BOOTSTRAP = "10.0.0.1:8998"
PREFILL, DECODE = "10.0.0.1:40001", "10.0.0.2:40002"
AGE_S = 3600.0


def room(number: int, phase: str, seconds: float = 0.2, *, peer: str | None = None, rid: str | None = None) -> dict:
    """A live room that has been in ``phase`` so long."""
    return {
        "room": number, "generation": number, "state": "live", "rid": rid or f"r{number}", "peer": peer, "phase": phase,
        "outcome": None, "reason": None, "pages": 1, "bytes": 100, "started_at": AT - seconds, "ended_at": None,
        "seconds": seconds, "timeline": [{"phase": phase, "at": AT - seconds, "seconds": seconds}],
    }  # fmt: skip


def ended(
    number: int, reason: str = "delivered", ago: float = 5.0, *, peer: str | None = None, phase: str = "transferring"
) -> dict:
    """A room that ended so long ago; it failed unless it was ``delivered``."""
    outcome = "success" if reason == "delivered" else "failed"
    return room(number, phase, 1.0, peer=peer) | {
        "state": "ended", "outcome": outcome, "reason": reason, "started_at": AT - ago - 1.0, "ended_at": AT - ago,
    }  # fmt: skip


def status(role: str, rooms: Iterable[dict] = (), **more: Any) -> dict:
    """What a rank says of itself; its counts follow from ``rooms``."""
    rooms = list(rooms)
    outcomes = [one["outcome"] for one in rooms]
    reasons = [one["reason"] for one in rooms if one["outcome"] == "failed"]
    return {
        "role": role, "at": AT, "started_at": AT - AGE_S, "age_seconds": AGE_S, "loop_age_seconds": 0.01,
        "classes": "ReliableKVManager", "speaks": True, "agent": f"agent-of-{role}", "environment": {},
        "address": PREFILL if role == "prefill" else DECODE, "coordinates": {"tp_rank": 0, "dp_rank": None},
        "threads": {"deadlines": {"up": True, "restarts": 0, "last_error": None}},
        "rooms": {
            "ended": {outcome: outcomes.count(outcome) for outcome in ("success", "failed", "aborted")},
            "failed_by_reason": {reason: reasons.count(reason) for reason in reasons},
        },
    } | more  # fmt: skip


def answer(name: str, said: Mapping[str, dict | None], problems: Mapping[str, str] | None = None) -> dict:
    """A server's answer, from what its ranks said; a rank with a problem said nothing."""
    problems = problems or {}
    return {
        "schema": {"name": f"sglang-pd/server-{name}", "version": 1},
        "ranks": [
            {"rank": rank, "pid": pid_of(rank, one), "seconds": 0.001, "problem": problems.get(rank),
             "said": None if rank in problems else one}
            for rank, one in said.items()
        ],
    }  # fmt: skip


def pid_of(rank: str, said: dict | None) -> int:
    return int((said or {}).get("pid") or 100 + int(rank[-1]))


def peer(agent: str = "agent-of-decode", address: str = DECODE, **more: Any) -> dict:
    """A decode rank as prefill has registered it."""
    return {
        "agent": agent, "address": address, "absent": False, "live_rooms": 0,
        "connection": {"closed": 0, "whole": True, "healing": False},
    } | more  # fmt: skip


def server(
    role: str,
    name: str | None = None,
    rooms: Iterable[dict] = (),
    *,
    later: Iterable[dict] | None = None,
    ranks: Mapping[str, dict] | None = None,
    problems: Mapping[str, str] | None = None,
    peers: Iterable[dict] = (),
    refused: Iterable[dict] = (),
    info: Mapping[str, Any] | None = None,
    loads: Mapping[str, Any] | None = None,
    loads_later: Mapping[str, Any] | None = None,
    ready: Iterable[str] = (),
    **more: Any,
) -> Server:
    """One that answers. ``rooms``: it lists all of them; ``later``: the live ones at the second look, the same unless
    given; ``loads_later``: what is another then. ``ranks``: their statuses, by name. ``ready``: why it is not."""
    rooms, reasons = list(rooms), list(ready)
    live = [one for one in rooms if one["state"] == "live"]
    said = ranks or {"tp0": status(role, rooms)}
    port = 31000 if role == "prefill" else 32000
    url = more.pop("url", f"http://10.0.0.{1 if role == 'prefill' else 2}:{port}")
    listing = {rank: {"rooms": live, "truncated": False} for rank in said}
    again = {rank: {"rooms": live if later is None else list(later), "truncated": False} for rank in said}
    settings = {"page_size": 1, "kv_cache_dtype": "auto", "disaggregation_bootstrap_port": 8998}
    bodies: dict[str, Any] = {
        "/ready": "",
        STATUS: answer("status", said, problems),
        LIVE: answer("rooms", listing, problems),
        ENDED: answer("rooms", {rank: {"rooms": [one for one in rooms if one not in live]} for rank in said}, problems),
        PEERS: answer("peers", {rank: {"peers": list(peers), "refused": list(refused)} for rank in said}, problems),
        INFO: settings | dict(info or {}),
        LOADS: {"loads": [{"num_running_reqs": 0, "num_used_tokens": 0, **(loads or {})}]},
    }
    replies = {path: Reply(path, 200, 0.01, body) for path, body in bodies.items()}
    replies[READY] = Reply(READY, 503 if reasons else 200, 0.01, {"ready": not reasons, "reasons": reasons})
    then = {"loads": [{**bodies[LOADS]["loads"][0], **(loads_later or {})}]}
    seconds = {LIVE: answer("rooms", again, problems), STATUS: bodies[STATUS], LOADS: then}
    return Server(
        name=name or f"{role}-0",
        role=role,
        url=url,
        replies=replies,
        later={path: Reply(path, 200, 0.01, body) for path, body in seconds.items()},
        window_seconds=1.5,
        **more,
    )


def stock(role: str, *, loads: Mapping[str, Any] | None = None, started_ago: float = AGE_S, **more: Any) -> Server:
    """One of stock upstream: nothing below ``/pd``."""
    whole = server(role, loads=loads, **more)
    replies = {path: Reply(path, 404, 0.01, {"detail": "Not Found"}) if path.startswith("/pd/") else reply
               for path, reply in whole.replies.items()}  # fmt: skip
    later = {path: reply for path, reply in whole.later.items() if not path.startswith("/pd/")}
    processes = more.get("processes") or [main(started_ago), scheduler(started_ago=started_ago)]
    return replace(whole, replies=replies, later=later, processes=processes)


def silent(role: str, problem: str = "connected, but no answer within 4.9 s", **more: Any) -> Server:
    """One that answers nothing."""
    whole = server(role, **more)
    replies = {path: Reply(path, None, 4.9, None, problem) for path in whole.replies}
    return replace(whole, replies=replies, later={})


def gateway(*workers: tuple[Server, bool]) -> Server:
    """``workers``: servers, and whether it calls each healthy."""
    listed = [{"url": one.url, "worker_type": one.role, "is_healthy": well} for one, well in workers]
    replies = {WORKERS: Reply(WORKERS, 200, 0.01, {"workers": listed})}
    return Server("gateway", "gateway", "http://10.0.0.3:30000", replies)


def main(started_ago: float = AGE_S, **more: Any) -> Process:
    command = ["python", "-m", "sglang.launch_server"]
    values = {"pid": 99, "parent": 1, "title": "main", "state": "S", "command": command} | more
    return Process(started_at=AT - started_ago, age_seconds=started_ago, **values)


def scheduler(
    pid: int = 100, state: str = "S", cores: float = 0.01, started_ago: float = AGE_S, **more: Any
) -> Process:
    return Process(pid, 99, "sglang::scheduler", state, AT - started_ago, started_ago, cores, **more)


def gpu(pid: int, utilisation: float, power: float) -> Gpu:
    return Gpu(0, "NVIDIA RTX PRO 6000", utilisation, power, 90_000.0, 97_887.0, [pid])


def log(*lines: str, **more: Any) -> Log:
    return Log("/var/log/server.log", matched=list(lines), matched_total=len(lines), **more)


def snapshot(*servers: Server, **more: Any) -> Snapshot:
    return Snapshot(AT, "here", 5.0, list(servers), 2.0, **more)


def case(*servers: Server, **more: Any) -> Case:
    return Case(snapshot(*servers, **more))


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding; raises ``AssertionError`` where there are none, or several."""
    found = list(findings)
    assert len(found) == 1, [one.headline for one in found]
    return found[0]
