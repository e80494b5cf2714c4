"""One side still holds the state of a process that is gone: after a restart of the other side alone."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import NAMED, Case
from sglang_pd.doctor.finding import Finding, RoomRef, Severity, Support
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted, seconds

RULE = "stale_peer"
# Started so much later: not with the other, but after it.
APART_S = 15.0
# The same, where its log shows that it began more than once.
SURELY_APART_S = 3.0
RECENT_S = 1800.0
# From the end of the old process until the new one counts as started.
RESTART_S = 120.0
# Where requests are held that wait for the other side.
QUEUES = {
    "prefill": (
        ("prefill_bootstrap", "that wait for a decode's metadata"),
        ("prefill_inflight", "in its in-flight queue"),
    ),
    "decode": (("decode_transfer", "that wait for a prefill's pages"),),
}
# Reasons that a replaced process gives the rooms of its peers.
REASONS = frozenset(
    {"peer_lost", "peer_silent", "peer_replaced", "peer_disconnected", "registration_failed", "registration_timeout",
     "nixl_not_found", "prefill_never_sent", "metadata_timeout", "transfer_timeout", "send_timeout"}
)  # fmt: skip


def look(case: Case) -> Iterator[Finding]:
    for prefill in case.prefills:
        yield from _registrations(case, prefill)
    for decode in case.decodes:
        yield from _prefills_ranks(case, decode)
    for prefill in case.prefills:
        for decode in case.decodes:
            if prefill.upstreams_classes or decode.upstreams_classes:
                yield from _upstreams(case, prefill, decode)


def _registrations(case: Case, prefill: View) -> Iterator[Finding]:
    """What prefill has registered, and no decode calls its own."""
    known = {rank.status["agent"] for one in case.decodes for rank in one.ranks if rank.status.get("agent")}
    silent = [one for one in case.decodes if not one.ranks or any(not rank.status.get("agent") for rank in one.ranks)]
    behind = {one.get("url") for one in case.workers if one.get("worker_type") == "decode"}
    unseen = behind - {one.server.url for one in case.decodes}
    for rank in prefill.ranks:
        for peer in rank.peers.get("peers") or []:
            if peer.get("agent") in known or "agent" not in peer:
                continue
            address = str(peer.get("address"))
            pinned = [room for room in prefill.live if room.peer == address]
            failed = [room for room in prefill.failed(REASONS, RECENT_S) if room.peer == address]
            absent = bool(peer.get("absent"))
            if not absent and silent:
                continue
            every = bool(behind) and not unseen and not silent
            support = Support.LIKELY if absent or every else Support.POSSIBLE
            support = Support.SURE if absent and every else support
            evidence = [f"{prefill.name} holds a registration of agent {peer['agent'][:8]} at {address}",
                        "no decode that was looked at has this agent"]  # fmt: skip
            evidence += ["its control connection is broken"] if absent else []
            evidence += [f"{counted(len(failed), 'room')} with it failed lately ({failed[0].reason})"] if failed else []
            against = [f"{one.name} did not say what its agent is" for one in silent]
            against += (
                [f"the gateway also knows {', '.join(sorted(map(str, unseen)))}, not looked at"] if unseen else []
            )
            against += [] if pinned else ["no live room waits for it"]
            rooms, total = case.refs(pinned or failed)
            yield Finding(
                RULE,
                Severity.FAULT if pinned else Severity.NOTE,
                support,
                f"{prefill.name} → a decode that is gone ({address})",
                f"{prefill.name} still holds the state of a decode that is gone",
                tuple(evidence),
                tuple(against),
                (
                    "nothing, where no room waits for it: it is dropped with the connection"
                    if not pinned
                    else f"its rooms end by their deadline; if they do not, restart {prefill.name} alone",
                ),
                min((room.since for room in pinned), default=None),
                rooms,
                total,
            )


def _prefills_ranks(case: Case, decode: View) -> Iterator[Finding]:
    """Ranks that decode has registered with, and no prefill calls its own."""
    known = {rank.status["address"] for one in case.prefills for rank in one.ranks if rank.status.get("address")}
    silent = any(not rank.status.get("address") for one in case.prefills for rank in one.ranks)
    for rank in decode.ranks:
        for peer in rank.peers.get("peers") or []:
            prefill = case.server_at(decode, str(peer.get("address")))
            if prefill is None or silent or not prefill.ranks:
                continue
            gone = [one for one in peer.get("ranks") or [] if one.get("address") not in known]
            if not gone:
                continue
            pinned = [room for room in decode.live if room.peer == peer.get("address")]
            rooms, total = case.refs(pinned)
            yield Finding(
                RULE,
                Severity.FAULT if pinned else Severity.NOTE,
                Support.SURE if pinned else Support.LIKELY,
                f"{decode.name} → {prefill.name} (registration)",
                f"{decode.name} is registered with ranks of {prefill.name} that are gone",
                tuple(f"{one['address']} is no rank of {prefill.name} as it runs now" for one in gone),
                () if pinned else ("no live room waits for it",),
                ("it registers anew with the next request; if rooms stay, restart " + f"{decode.name} alone",),
                prefill.started_at,
                rooms,
                total,
            )


def _upstreams(case: Case, prefill: View, decode: View) -> Iterator[Finding]:
    """Upstream's classes tell no incarnation: ages, failures and queues have to."""
    if prefill.started_at is None or decode.started_at is None:
        return
    older, newer = sorted((prefill, decode), key=lambda one: one.started_at or 0.0)
    assert older.started_at is not None
    assert newer.started_at is not None
    apart = newer.started_at - older.started_at
    starts = newer.server.log.starts if newer.server.log else 0
    if apart < (APART_S if starts < 2 else SURELY_APART_S):
        return
    pinned, logged, rooms = _pinned(older), *_logged(older, newer)
    restarts = int((newer.server.unit or {}).get("NRestarts") or 0)
    if not (pinned or logged):
        return
    evidence = [
        f"{older.name} has been up for {seconds(case.at - older.started_at)}, {newer.name} for "
        f"{seconds(case.at - newer.started_at)}: it was restarted alone",
    ]
    evidence += [f"the log of {newer.name} has {starts} starts"] if starts > 1 else []
    evidence += [f"systemd counts {restarts} restarts of {newer.name}"] if restarts else []
    against = [] if rooms else ["no log names a request"]
    against += [] if pinned else [f"nothing is seen to be pinned on {older.name} now"]
    moving = sum(one.queue("running") or 0.0 for one in case.decodes)
    against += [f"{moving:.0f} requests are being decoded: new ones go through"] if moving else []
    yield Finding(
        RULE,
        Severity.FAULT if pinned else Severity.WARNING,
        Support.LIKELY if logged and (pinned or starts > 1) else Support.POSSIBLE,
        f"{prefill.name} → {decode.name} (KV transfer, registration)",
        f"{older.name} still holds the state of an earlier {newer.name}",
        (*evidence, *pinned, *logged, f"{_which(prefill, decode)} with upstream's classes, which know no incarnation"),
        tuple(against),
        (
            f"restart {older.name} as well: with upstream's classes nothing less lets go of what it holds",
            "then run both with SGLANG_PD_RELIABLE=1: one side alone may be restarted, and rooms end with a reason",
        ),
        newer.started_at,
        tuple(rooms[:NAMED]),
        len(rooms),
    )


def _which(prefill: View, decode: View) -> str:
    names = [one.name for one in (prefill, decode) if one.upstreams_classes]
    return " and ".join(names) + (" transfers" if len(names) == 1 else " transfer")


def _pinned(older: View) -> list[str]:
    """The requests that the older side holds, while it computes nothing. A busy one has some in every queue."""
    if older.computed is not False:
        return []
    found = []
    for queue, where in QUEUES[older.role or ""]:
        before, after = (older.queue(queue, later) for later in (False, True))
        if before and after:
            found.append(f"{older.name} has {min(before, after):.0f} {where}, and computes nothing")
    return found


def _logged(older: View, newer: View) -> tuple[list[str], list[RoomRef]]:
    """What the older side's log says of failures since the other was started anew, and the requests that both name."""
    since = max(older.at - RECENT_S, (newer.started_at or 0.0) - RESTART_S)
    old = {one.room: one for one in older.log_failures if one.at is None or one.at > older.at - RECENT_S}
    new = {one.room: one for one in newer.log_failures}
    found = []
    if any(one.at is None or one.at > since for one in old.values()):
        last = max((one.at for one in old.values() if one.at), default=None)
        when = "" if last is None else f", the last {seconds(older.at - last)} ago"
        found.append(
            f"the log of {older.name} has {counted(len(old), 'failed transfer')}{when}, that of {newer.name} {len(new)}"
        )
        one = next(iter(old.values()))
        found.append(f"such as: {one.what}: {one.why[:160]}" if one.why else f"such as: {one.what}")
    rooms = []
    for number in sorted({*old, *new}, key=lambda room: -((old.get(room) or new[room]).at or 0.0)):
        sides: dict[str, str | None] = {"prefill": None, "decode": None}
        for view, logged in ((older, old), (newer, new)):
            if number in logged:
                sides[view.role or ""] = f"{logged[number].what} failed"
        rid = (old.get(number) or new[number]).rid
        rooms.append(RoomRef(number, rid, sides["prefill"], sides["decode"]))
    return found, rooms
