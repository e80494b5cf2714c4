"""Why nothing moves, from what is known when it is noticed; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sglang.srt.disaggregation.reliable.phases import DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.room import RoomRecord
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.watchdog_stacks import Place


class Cause(StrEnum):
    """The first that holds, in this order; ``docs/stalls.md`` says what to do about each.

    ``control_thread_dead``: a thread that carries the KV path is down, or died while nothing moved.
    ``rank_out_of_step``: this rank's loop waits for the others in a collective. ``loop_wedged``: its loop does not come
    round, for another reason. ``transfer_stalled``: writes to a decode do not arrive. ``no_pages``: nobody gives back
    KV pages. ``not_scheduled``: the loop comes round and does not take the requests. ``waiting_for_peer``: it is the
    other side's turn.
    """

    CONTROL_THREAD_DEAD = "control_thread_dead"
    RANK_OUT_OF_STEP = "rank_out_of_step"
    LOOP_WEDGED = "loop_wedged"
    TRANSFER_STALLED = "transfer_stalled"
    NO_PAGES = "no_pages"
    NOT_SCHEDULED = "not_scheduled"
    WAITING_FOR_PEER = "waiting_for_peer"


@dataclass(frozen=True)
class Rank:
    """A scheduler rank of this server as it was found. ``loop_age_s``: since its loop came round, None where not known.
    ``place``: where its main thread is, ``frame``: in words. ``problem``: why it did not say."""

    name: str
    loop_age_s: float | None = None
    place: Place | None = None
    frame: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known of the process. ``dead``: threads of the KV path that are down or died lately, with the reason.
    ``own``: this rank, ``others``: the others of its server. ``loop_limit_s``: a loop that is older stands still."""

    dead: Mapping[str, str]
    own: Rank
    others: Sequence[Rank]
    lanes: Sequence[Lane]
    loop_limit_s: float

    @property
    def loop_stands_still(self) -> bool:
        return self.own.loop_age_s is not None and self.own.loop_age_s >= self.loop_limit_s


@dataclass(frozen=True)
class Diagnosis:
    """``scope``: the peer that it is about, None where it is the process itself; ``text``: one sentence."""

    cause: Cause
    scope: str | None
    text: str


# By role: phases of the two compare as text, and some have the same name.
_OF_PREFILL: Mapping[str, tuple[Cause, str]] = {
    PrefillPhase.BOOTSTRAPPING: (Cause.WAITING_FOR_PEER, "no metadata comes from decode"),
    PrefillPhase.WAITING: (Cause.NOT_SCHEDULED, "the scheduler's loop comes round and takes none of them"),
    PrefillPhase.TRANSFERRING: (Cause.NOT_SCHEDULED, "all that was computed has arrived, and no more is computed"),
}
_OF_DECODE: Mapping[str, tuple[Cause, str]] = {
    DecodePhase.RESOLVING: (Cause.WAITING_FOR_PEER, "prefill's bootstrap server does not say which rank has them"),
    DecodePhase.BOOTSTRAPPING: (Cause.WAITING_FOR_PEER, "prefill's ranks are not found, or not registered with"),
    DecodePhase.ALLOCATING: (Cause.NO_PAGES, "no KV pages become free for them"),
    DecodePhase.WAITING: (Cause.WAITING_FOR_PEER, "prefill has their metadata and sends nothing"),
    DecodePhase.TRANSFERRING: (Cause.WAITING_FOR_PEER, "prefill began to send and does not end"),
    DecodePhase.FINISHING: (Cause.WAITING_FOR_PEER, "prefill says that all was sent, and it is not complete here"),
    DecodePhase.VERIFYING: (Cause.NOT_SCHEDULED, "none of them gets into a batch"),
}
_BY_PHASE = {Role.PREFILL: _OF_PREFILL, Role.DECODE: _OF_DECODE}


def usual(role: Role) -> list[tuple[str, Cause]]:
    """The phases and causes that may come together, that of the loop aside: a counter starts at 0 for each."""
    everywhere = (Cause.CONTROL_THREAD_DEAD, Cause.RANK_OUT_OF_STEP, Cause.LOOP_WEDGED)
    found = [(str(phase), cause) for phase, (own, _) in _BY_PHASE[role].items() for cause in (*everywhere, own)]
    written = (PrefillPhase.WAITING, PrefillPhase.TRANSFERRING) if role is Role.PREFILL else ()
    return found + [(str(phase), Cause.TRANSFER_STALLED) for phase in written]


def diagnose(
    role: Role, phase: str, peer: str | None, rooms: Sequence[RoomRecord], limit_s: float, evidence: Evidence
) -> Diagnosis:
    """Why ``rooms``, in ``phase`` with ``peer`` (None: with any), have not moved for ``limit_s`` seconds or longer.

    ``phase`` may be that of the loop itself, without rooms: its loop stands still then.
    """
    if evidence.dead:
        threads = "; ".join(f"{name}: {why}" for name, why in evidence.dead.items())
        return Diagnosis(Cause.CONTROL_THREAD_DEAD, None, f"control thread down or dying: {threads}")
    if evidence.loop_stands_still:
        return _of_loop(evidence)
    for lane in evidence.lanes:
        if _holds(lane, rooms, limit_s):
            return Diagnosis(Cause.TRANSFER_STALLED, _peer_of(lane, peer), _of_lane(lane))
    cause, text = _BY_PHASE[role][phase]
    return Diagnosis(cause, peer if cause is Cause.WAITING_FOR_PEER else None, text)


def _of_loop(evidence: Evidence) -> Diagnosis:
    own = evidence.own
    where = f"the scheduler's loop has not come round for {own.loop_age_s:.0f} s, and is in {own.frame or 'no frame'}"
    others = [_in_words(rank, evidence.loop_limit_s) for rank in evidence.others]
    text = "; ".join([where, *others])
    # Who waits on the GPU waits for a collective there if any other rank does something else.
    apart = any(rank.place is not own.place or rank.problem for rank in evidence.others)
    waits = own.place is Place.COLLECTIVE or (own.place is Place.GPU and apart)
    return Diagnosis(Cause.RANK_OUT_OF_STEP if waits else Cause.LOOP_WEDGED, None, text)


def _in_words(rank: Rank, limit_s: float) -> str:
    if rank.problem is not None:
        return f"rank {rank.name}: {rank.problem}"
    if rank.loop_age_s is None or rank.loop_age_s < limit_s:
        return f"rank {rank.name}: its loop comes round"
    return f"rank {rank.name}: not for {rank.loop_age_s:.0f} s, in {rank.frame or 'no frame'}"


def _holds(lane: Lane, rooms: Sequence[RoomRecord], limit_s: float) -> bool:
    """Whether the lane stands still, and the first of the rooms waits for it."""
    if not lane.busy or not rooms:
        return False
    stands_still = lane.quiet_seconds >= limit_s / 2
    # A thread that is inside NIXL does not show what it was about to post.
    stuck = lane.looked_seconds >= limit_s / 2 and rooms[0].peer in lane.addresses
    return stuck or (stands_still and any(room.room in lane.rooms for room in rooms))


def _peer_of(lane: Lane, peer: str | None) -> str:
    if peer in lane.addresses and peer is not None:
        return peer
    return min(lane.addresses or lane.agents, default="unknown")


def _of_lane(lane: Lane) -> str:
    since = lane.oldest_seconds if lane.arrived_seconds is None else lane.arrived_seconds
    peers = ", ".join(lane.addresses or lane.agents)
    writes, size = lane.in_flight + lane.stalled, lane.in_flight_bytes + lane.stalled_bytes
    return (
        f"nothing has arrived at decode {peers} for {since:.0f} s: {writes} writes of {size} bytes in flight, "
        f"{lane.queued} chunks of {lane.queued_bytes} bytes queued"
    )
