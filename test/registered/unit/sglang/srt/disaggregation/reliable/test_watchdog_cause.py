"""Which cause is found, from evidence made up."""

from dataclasses import replace

import pytest

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.watchdog import LOOP
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Evidence, Rank, diagnose, usual
from sglang.srt.disaggregation.reliable.watchdog_stacks import Place

LIMIT = 30.0
PEER = "10.0.0.2:4001"
TURNS = Rank("tp0", 0.5, Place.ELSEWHERE, "get_next_batch_to_run (scheduler.py:1)")
FINE = Evidence(dead={}, own=TURNS, others=(), lanes=(), loop_limit_s=LIMIT / 2)
IDLE = Lane(
    agents=("agent-2",),
    addresses=(PEER,),
    queued=0,
    queued_bytes=0,
    in_flight=0,
    in_flight_bytes=0,
    stalled=0,
    stalled_bytes=0,
    oldest_seconds=0.0,
    arrived_seconds=None,
    looked_seconds=0.0,
    rooms=frozenset(),
)
STUCK = replace(IDLE, in_flight=2, in_flight_bytes=4096, oldest_seconds=LIMIT, arrived_seconds=LIMIT + 5, rooms={7})


def blocked(place, age=LIMIT, name="tp0"):
    return Rank(name, age, place, "all_reduce (distributed_c10d.py:1)")


def rooms(role=Role.PREFILL, room=7, peer=PEER):
    ledger = Ledger(role, clock=lambda: 0.0)
    ledger.start(room, peer=peer)
    return list(ledger.live_rooms())


def found(evidence, role=Role.PREFILL, phase=PrefillPhase.TRANSFERRING, peer=PEER):
    return diagnose(role, phase, peer, rooms(role), LIMIT, evidence)


def test_a_dead_thread_comes_first_and_is_named():
    evidence = replace(FINE, dead={"prefill-control": "down: ValueError: x"}, own=blocked(Place.COLLECTIVE))
    why = found(evidence)
    assert (why.cause, why.scope) == (Cause.CONTROL_THREAD_DEAD, None)
    assert "prefill-control: down: ValueError: x" in why.text


def test_a_loop_that_is_blocked_elsewhere_is_wedged():
    why = found(replace(FINE, own=blocked(Place.ELSEWHERE)))
    assert (why.cause, why.scope) == (Cause.LOOP_WEDGED, None)
    assert "has not come round for 30 s, and is in all_reduce" in why.text


@pytest.mark.parametrize(
    "other",
    [
        Rank("tp1", 0.1, Place.ELSEWHERE, "x"),
        blocked(Place.ELSEWHERE, name="tp1"),
        blocked(Place.COLLECTIVE, name="tp1"),
        Rank("tp1", problem="no answer within 1 s"),
    ],
)
def test_one_that_waits_in_a_collective_is_out_of_step_whatever_the_other_does(other):
    why = found(replace(FINE, own=blocked(Place.COLLECTIVE), others=(other,)))
    assert why.cause is Cause.RANK_OUT_OF_STEP
    assert "rank tp1" in why.text


def test_one_that_waits_for_the_gpu_is_out_of_step_only_where_another_does_something_else():
    both = replace(FINE, own=blocked(Place.GPU), others=(blocked(Place.GPU, name="tp1"),))
    assert found(both).cause is Cause.LOOP_WEDGED
    assert found(replace(both, others=(blocked(Place.ELSEWHERE, name="tp1"),))).cause is Cause.RANK_OUT_OF_STEP
    assert found(replace(both, others=())).cause is Cause.LOOP_WEDGED


def test_what_the_other_ranks_do_is_told():
    others = (Rank("tp1", 0.1, Place.ELSEWHERE, "x"), Rank("tp2", problem="its process 7 is gone"))
    text = found(replace(FINE, own=blocked(Place.COLLECTIVE), others=others)).text
    assert "rank tp1: its loop comes round" in text
    assert "rank tp2: its process 7 is gone" in text


def test_writes_that_do_not_arrive_are_a_stalled_transfer_of_that_decode():
    why = found(replace(FINE, lanes=(IDLE, STUCK)))
    assert (why.cause, why.scope) == (Cause.TRANSFER_STALLED, PEER)
    assert "2 writes of 4096 bytes in flight" in why.text
    assert "for 35 s" in why.text


def test_rooms_that_wait_behind_a_stalled_write_have_the_same_cause_and_scope():
    waiting = found(replace(FINE, lanes=(STUCK,)), phase=PrefillPhase.WAITING, peer=None)
    assert (waiting.cause, waiting.scope) == (Cause.TRANSFER_STALLED, PEER)


def test_a_lane_whose_thread_is_stuck_shows_by_its_peer():
    inside = replace(IDLE, queued=1, oldest_seconds=1.0, looked_seconds=LIMIT)
    assert found(replace(FINE, lanes=(inside,))).cause is Cause.TRANSFER_STALLED


@pytest.mark.parametrize(
    "lane",
    [
        replace(IDLE, looked_seconds=LIMIT),
        replace(STUCK, arrived_seconds=0.5),
        replace(STUCK, oldest_seconds=0.5),
        replace(STUCK, rooms=frozenset({8})),
    ],
    ids=["idle", "arrives", "young", "of other rooms"],
)
def test_other_lanes_are_not_the_cause(lane):
    assert found(replace(FINE, lanes=(lane,))).cause is Cause.NOT_SCHEDULED


@pytest.mark.parametrize(
    ("role", "phase", "cause"),
    [
        (Role.PREFILL, PrefillPhase.BOOTSTRAPPING, Cause.WAITING_FOR_PEER),
        (Role.PREFILL, PrefillPhase.WAITING, Cause.NOT_SCHEDULED),
        (Role.DECODE, DecodePhase.ALLOCATING, Cause.NO_PAGES),
        (Role.DECODE, DecodePhase.WAITING, Cause.WAITING_FOR_PEER),
        (Role.DECODE, DecodePhase.VERIFYING, Cause.NOT_SCHEDULED),
    ],
)
def test_where_nothing_is_wrong_here_the_phase_tells(role, phase, cause):
    why = found(FINE, role, phase)
    assert (why.cause, why.scope) == (cause, PEER if cause is Cause.WAITING_FOR_PEER else None)


@pytest.mark.parametrize("role", Role)
def test_every_phase_has_a_cause(role):
    for phase in PHASES[role]:
        assert found(FINE, role, phase).text


def test_the_usual_pairs_are_those_that_are_found():
    prefill = set(usual(Role.PREFILL))
    assert ("waiting", Cause.TRANSFER_STALLED) in prefill
    assert ("transferring", Cause.TRANSFER_STALLED) in prefill
    assert Cause.TRANSFER_STALLED not in {cause for _, cause in usual(Role.DECODE)}
    for role in Role:
        for phase in PHASES[role]:
            assert (phase, found(FINE, role, phase).cause) in usual(role)
            assert (phase, found(replace(FINE, dead={"x": "y"}), role, phase).cause) in usual(role)


def test_a_loop_without_rooms_is_diagnosed_too():
    evidence = replace(FINE, own=blocked(Place.ELSEWHERE))
    assert diagnose(Role.DECODE, LOOP, None, (), LIMIT, evidence).cause is Cause.LOOP_WEDGED


def test_a_loop_that_never_came_round_is_not_accused():
    assert found(replace(FINE, own=Rank("tp0", None, Place.ELSEWHERE))).cause is Cause.NOT_SCHEDULED
