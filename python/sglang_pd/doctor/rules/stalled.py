"""Rooms that are pinned between a prefill and a decode, while neither computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.rules.scheduler import LOOP_S
from sglang_pd.doctor.seen import Rank, Room
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import by_number, counted, seconds

RULE = "transfer_stalled"
# Phases in which a room waits for the other side, or for the network, and for nothing else.
ON_THE_WAY = frozenset({"waiting", "transferring", "finishing"})
# A room that did not move for so long, while one side is seen to stand still; and while none is.
PINNED_S, STUCK_S = 1.0, 15.0
# Fewer cores, of all its schedulers together, are idling.
IDLE_CORES = 0.3
IDLE_GPU = 10.0
RECENT_S = 60.0
# Why rooms end whose peer stands still.
REASONS = frozenset({"peer_silent", "transfer_timeout", "send_timeout", "prefill_never_sent", "metadata_timeout"})


def look(case: Case) -> Iterator[Finding]:
    for prefill in case.prefills:
        for decode in case.decodes:
            found = _between(case, prefill, decode)
            if found is not None:
                yield found
    for prefill in case.prefills:
        if prefill.upstreams_classes:
            yield from _upstreams(case, prefill)


def _between(case: Case, prefill: View, decode: View) -> Finding | None:
    theirs = [room for room in prefill.live if case.peer_of(prefill, room) is decode]
    theirs += [room for room in decode.live if case.peer_of(decode, room) is prefill]
    theirs = [room for room in theirs if room.phase in ON_THE_WAY]
    culprit, evidence = _standing(prefill, decode)
    broken, told = _connection(prefill, decode), _told(prefill, decode)
    if culprit:
        # Those that ended for its silence belong to it, and those that wait for nobody else.
        pinned = [room for room in theirs if room.phase_seconds > PINNED_S]
        pinned += [*_unclaimed(case, prefill, decode), *_ended(case, prefill, decode)]
    else:
        pinned = [room for room in theirs if _unmoved(room, prefill, decode)]
    if not pinned:
        return None
    oldest = max(pinned, key=lambda room: case.at - room.since)
    busy = [one for one in (prefill, decode) if cores(one) > IDLE_CORES and not one.upstreams_classes]
    if not culprit and not _long_enough(oldest, PINNED_S if broken or told else STUCK_S, prefill in busy):
        return None
    rooms, total = case.refs(pinned)
    idle = [_idle(case, one) for one in (prefill, decode)]
    against = [f"{one.name} uses {cores(one):.1f} cores: it is at something" for one in busy]
    done = [room for room in decode.rooms if room.outcome == "success" and case.peer_of(decode, room) is prefill
            and (room.ended_at or 0.0) > oldest.since]  # fmt: skip
    against += [f"{counted(len(done), 'other room')} between the two ended well since"] if done else []
    return Finding(
        RULE,
        Severity.FAULT,
        Support.SURE if culprit else Support.LIKELY,
        f"{prefill.name} → {decode.name} (KV transfer)",
        f"{counted(total, 'room')} pinned between {prefill.name} and {decode.name}"
        + (f": {culprit} stands still" if culprit else ""),
        (
            *_how(prefill, pinned),
            *evidence,
            *broken,
            *told,
            *_lanes(prefill, decode),
            *[one for one in idle if one],
        ),
        tuple(against),
        _todo(prefill, decode, culprit),
        oldest.since,
        rooms,
        total,
    )


def _long_enough(oldest: Room, limit_s: float, prefill_computes: bool) -> bool:
    """Whether that is too long, where nobody is seen to stand still: prefill may have others to compute first."""
    return oldest.phase_seconds >= limit_s and not (oldest.phase == "waiting" and prefill_computes)


def _how(prefill: View, pinned: list[Room]) -> list[str]:
    """How far they are, and those that have failed by now."""
    phases = Counter(
        f"{room.phase} on {'prefill' if room.server == prefill.name else 'decode'}" for room in pinned if room.live
    )
    reasons = Counter(room.reason or "?" for room in pinned if not room.live)
    found = []
    if phases:
        longest = max(room.phase_seconds for room in pinned if room.live)
        found.append(f"live and waiting: {by_number(phases)}; the oldest for {seconds(longest)}")
    return [*found, f"failed since: {by_number(reasons)}"] if reasons else found


def _ended(case: Case, prefill: View, decode: View) -> list[Room]:
    """Rooms between the two that failed lately, as those of a peer that stands still do."""
    return [
        room
        for view, other in ((prefill, decode), (decode, prefill))
        for room in view.failed(REASONS, RECENT_S)
        if case.peer_of(view, room) is other
    ]


def _unclaimed(case: Case, prefill: View, decode: View) -> list[Room]:
    """Rooms that wait for metadata of who knows whom, where only this decode does not say what it has."""
    if any(one.all_live_listed == (one is decode) for one in case.decodes):
        return []
    return [room for room in prefill.live if room.room in prefill.unmoved and case.peer_of(prefill, room) is None]


def _unmoved(room: Room, prefill: View, decode: View) -> bool:
    return room.room in (prefill if room.server == prefill.name else decode).unmoved


def _told(prefill: View, decode: View) -> list[str]:
    """What the watchdogs of the two see."""
    return [
        f"the watchdog of {view.name}: {one.get('text')} ({one.get('cause')}, {one.get('rooms')} rooms in "
        f"{one.get('phase')}, {seconds(float(one.get('seconds') or 0.0))})"
        for view in (prefill, decode)
        for one in view.stalls
        if one.get("phase") in ON_THE_WAY
    ]


def _standing(prefill: View, decode: View) -> tuple[str | None, list[str]]:
    """Which scheduler of the two stands still, and what shows it."""
    for view in (decode, prefill):
        for process in view.schedulers:
            if process.state in "Tt":
                return f"scheduler {process.pid} of {view.name}", [f"process {process.pid} is in state {process.state}"]
        for rank in view.ranks:
            why = _why_still(rank)
            if why:
                return f"rank {rank.name} of {view.name}", [f"{view.name}, rank {rank.name}: {why}"]
    return None, []


def _why_still(rank: Rank) -> str | None:
    # One that is gone is another matter: the other side knows, and its rooms end.
    if rank.problem is not None and not rank.gone:
        return rank.problem
    if rank.loop_age is not None and rank.loop_age > LOOP_S:
        return f"its loop came round {seconds(rank.loop_age)} ago"
    return None


def _connection(prefill: View, decode: View) -> list[str]:
    """What prefill says of its NIXL connections to that decode, where they are not whole."""
    addresses = {rank.status.get("address") for rank in decode.ranks}
    found = []
    for rank in prefill.ranks:
        for peer in rank.peers.get("peers") or []:
            link = peer.get("connection") or {}
            if peer.get("address") not in addresses or not peer.get("live_rooms"):
                continue
            if link.get("healing") or link.get("whole") is False:
                found.append(f"NIXL's connection to {peer['address']} broke and has not healed")
            if peer.get("absent"):
                found.append(f"the control connection to {peer['address']} is broken")
    return found


def _lanes(prefill: View, decode: View) -> Iterator[str]:
    """What prefill has on its way to that decode."""
    addresses = {rank.status.get("address") for rank in decode.ranks} - {None}
    for rank in prefill.ranks:
        for lane in rank.status.get("lanes") or []:
            if addresses and not addresses & set(lane.get("addresses") or []):
                continue
            writes = (lane.get("in_flight") or {}).get("writes") or 0
            queued = (lane.get("queued") or {}).get("chunks") or 0
            if writes or queued:
                arrived = lane.get("arrived_seconds")
                last = "none has arrived" if arrived is None else f"the last arrived {seconds(arrived)} ago"
                yield f"{counted(writes, 'write')} in flight and {counted(queued, 'chunk')} queued there; {last}"


def cores(view: View) -> float:
    """CPU that its schedulers use; 0 where they are not on this machine."""
    return sum(one.cores for one in view.schedulers)


def _idle(case: Case, view: View) -> str | None:
    gpus = [one for one in case.gpus_of(view) if one.utilisation is not None]
    if gpus and all((one.utilisation or 0.0) < IDLE_GPU for one in gpus):
        power = ", ".join(f"{one.power_watts:.0f} W" for one in gpus if one.power_watts is not None)
        return f"the GPUs of {view.name} idle ({power})"
    if view.schedulers and cores(view) < IDLE_CORES:
        return f"the schedulers of {view.name} idle ({cores(view):.2f} cores)"
    return None


def _todo(prefill: View, decode: View, culprit: str | None) -> tuple[str, ...]:
    if culprit:
        still = decode if decode.name in culprit else prefill
        pid = next((one.pid for one in still.schedulers if one.state in "Tt"), None)
        wake = f"kill -CONT {pid}, if nobody debugs it; else " if pid else "keep its stacks (--stacks), then "
        return (
            f"{wake}restart {still.name}, and nothing else",
            "rooms end by their deadline meanwhile; the gateway sends new requests elsewhere",
        )
    return (
        f"look at the network between {prefill.name} and {decode.name}: link, routes, UCX_NET_DEVICES on both sides",
        f"if it does not heal, restart {decode.name} alone",
    )


def _upstreams(case: Case, prefill: View) -> Iterator[Finding]:
    """Nobody keeps accounts there; the queues have to tell."""
    before, after = (prefill.queue("prefill_inflight", later) for later in (False, True))
    waiting = sum(one.queue("decode_transfer") or 0.0 for one in case.decodes)
    if not before or before != after or prefill.computed is not False or cores(prefill) > IDLE_CORES:
        return
    last = max((one.last_batch_at for one in [prefill, *case.decodes] if one.last_batch_at), default=None)
    quiet = None if last is None else case.at - last
    if quiet is not None and quiet < STUCK_S:
        return
    idle = [one for one in (_idle(case, view) for view in [prefill, *case.decodes]) if one]
    evidence = [f"{prefill.name} has {before:.0f} in its in-flight queue, twice in a row"]
    evidence += [f"its decodes have {waiting:.0f} in their transfer queues"] if waiting else []
    evidence += [f"no batch was logged for {seconds(quiet)}"] if quiet is not None else []
    against = ["upstream's classes do not say which requests these are, nor how long they wait"]
    against += [] if waiting else ["no decode waits for a transfer: it has given up, or never asked"]
    decode = case.decodes[0].name if len(case.decodes) == 1 else "one of its decodes"
    yield Finding(
        RULE,
        Severity.FAULT,
        Support.LIKELY if quiet is not None and idle else Support.POSSIBLE,
        f"{prefill.name} → {decode} (KV transfer)",
        f"{counted(int(before), 'request')} pinned in the in-flight queue of {prefill.name}",
        (*evidence, *idle),
        tuple(against),
        (
            f"restart {prefill.name} to free them: it holds them for ever with upstream's classes",
            "run both sides with SGLANG_PD_RELIABLE=1: each phase then has a deadline, and each room a reason",
        ),
        last,
        (),
        int(before),
    )
