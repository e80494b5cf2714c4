"""What counts as a standstill, and when it is told; with a clock of its own."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable import watchdog
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.watchdog import LOOP, Departures, Group, Stalls, Still, stills
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Diagnosis

SOFT = 30.0
PEER, OTHER = "10.0.0.7:8998", "10.0.0.8:8998"
PREFILL_WAITING = Group(PrefillPhase.WAITING)


class World:
    """A ledger, what the watchdog keeps of it, and a clock; it looks once a second."""

    def __init__(self, role=Role.DECODE, cause=Cause.WAITING_FOR_PEER, **bounds):
        self.now = 1000.0
        self.ledger = Ledger(role, clock=lambda: self.now)
        self.departures = Departures()
        self.ledger.on_end.add(self.departures.ended)
        limits = dict.fromkeys(PHASES[role], SOFT) | {LOOP: SOFT}
        self.stalls = Stalls(limits, **{"spacing_s": 0.0, **bounds})
        self.cause = cause
        self.asked = []

    def look(self, loop_age_s=None):
        self.stalls.rested(self.now)
        moved = self.departures.read()
        found = stills(self.ledger.live_rooms(), moved)
        if loop_age_s is not None:
            found.append(Still(Group(LOOP), self.now - loop_age_s, self.now - loop_age_s))
        return self.stalls.look(self.now, found, moved, self.diagnose)

    def diagnose(self, still):
        self.asked.append(still.group)
        return Diagnosis(self.cause, still.group.peer, "because")

    def run(self, seconds, each=lambda: None):
        """Look every second for so long, with ``each`` before; returns what was told, by group."""
        told = []
        for _ in range(int(seconds)):
            self.now += 1
            each()
            told += [stall.group for stall in self.look()]
        return told


@pytest.fixture
def world():
    return World()


def test_rooms_that_do_not_move_are_told_at_the_limit_and_once(world):
    world.ledger.start(1, peer=PEER)
    world.ledger.start(2, peer=PEER)
    assert world.run(SOFT - 1) == []
    world.now += 1
    [stall] = world.look()
    assert stall.group == Group(DecodePhase.RESOLVING, PEER)
    assert [room.room for room in stall.rooms] == [1, 2]
    assert (stall.since, stall.found) == (1000.0, 1000.0 + SOFT)
    assert world.run(300) == []
    assert list(world.stalls.open) == [stall.group]
    assert len(world.asked) == 1


def test_nothing_is_told_of_nothing(world):
    assert world.run(200) == []
    assert world.stalls.idle


def test_rooms_that_enter_do_not_hide_that_none_gets_on(world):
    rooms = iter(range(1000))
    told = world.run(SOFT + 1, each=lambda: world.ledger.start(next(rooms), peer=PEER))
    assert told == [Group(DecodePhase.RESOLVING, PEER)]


def test_rooms_that_fail_do_not_hide_it_either(world):
    def one_more():
        world.ledger.start(int(world.now), peer=PEER)
        world.ledger.end(int(world.now) - 10, Outcome.FAILED, Reason.PEER_LOST)

    world.ledger.start(1, peer=PEER)
    assert world.run(SOFT, each=one_more) == [Group(DecodePhase.RESOLVING, PEER)]


def test_a_busy_system_whose_rooms_get_on_is_not_told(world):
    def work():
        world.ledger.start(int(world.now), peer=PEER)
        world.ledger.enter(int(world.now) - 5, DecodePhase.WAITING)
        world.ledger.end(int(world.now) - 10, Outcome.SUCCESS)

    assert world.run(600, each=work) == []


def test_one_room_that_others_overtake_is_not_told(world):
    world.ledger.start(1, peer=PEER)

    def another():
        world.ledger.start(int(world.now), peer=PEER)
        world.ledger.enter(int(world.now), DecodePhase.WAITING)
        world.ledger.end(int(world.now), Outcome.SUCCESS)

    assert world.run(200, each=another) == []
    assert world.run(SOFT) == [Group(DecodePhase.RESOLVING, PEER)]


def test_rooms_too_fast_to_be_seen_count_as_movement(world):
    world.ledger.start(1, peer=PEER)
    world.ledger.enter(1, DecodePhase.WAITING)
    world.run(20)
    world.ledger.start(2, peer=PEER)
    world.ledger.enter(2, DecodePhase.WAITING)
    world.ledger.end(2, Outcome.SUCCESS)
    assert world.run(SOFT - 1) == []
    assert world.run(1) == [Group(DecodePhase.WAITING, PEER)]


def test_a_peer_that_stands_still_is_told_while_another_moves(world):
    world.ledger.start(1, peer=PEER)

    def other():
        world.ledger.start(int(world.now), peer=OTHER)
        world.ledger.end(int(world.now), Outcome.SUCCESS)

    assert world.run(SOFT, each=other) == [Group(DecodePhase.RESOLVING, PEER)]


def test_what_this_side_takes_in_turn_is_one_group_for_all_peers():
    world = World(Role.PREFILL)
    world.ledger.start(1, peer=PEER)
    world.ledger.enter(1, PrefillPhase.WAITING)

    def other():
        world.ledger.start(int(world.now), peer=OTHER)
        world.ledger.enter(int(world.now), PrefillPhase.WAITING)
        world.ledger.end(int(world.now), Outcome.SUCCESS)

    assert world.run(100, each=other) == []
    assert world.run(SOFT) == [PREFILL_WAITING]


def test_bytes_that_move_are_movement_on_prefill():
    world = World(Role.PREFILL)
    world.ledger.start(1, peer=PEER)
    world.ledger.enter(1, PrefillPhase.TRANSFERRING)
    assert world.run(200, each=lambda: world.ledger.progress(1, pages=1)) == []
    assert world.run(SOFT) == [Group(PrefillPhase.TRANSFERRING, PEER)]


def test_pages_that_decode_announces_are_no_movement(world):
    world.ledger.start(1, peer=PEER)
    world.ledger.enter(1, DecodePhase.WAITING)

    def another():
        world.ledger.start(int(world.now), peer=PEER)
        world.ledger.enter(int(world.now), DecodePhase.WAITING)
        world.now += 0.001
        world.ledger.progress(int(world.now), pages=4)

    assert world.run(SOFT, each=another) == [Group(DecodePhase.WAITING, PEER)]


def test_a_loop_that_does_not_come_round_is_told_without_a_room(world):
    assert world.look(loop_age_s=SOFT - 1) == []
    assert [stall.group for stall in world.look(loop_age_s=SOFT)] == [Group(LOOP)]
    assert world.look(loop_age_s=SOFT) == []


def test_groups_that_stand_still_for_one_cause_are_told_together_and_once():
    world = World(cause=Cause.LOOP_WEDGED)
    world.diagnose = lambda still: Diagnosis(Cause.LOOP_WEDGED, None, "because")
    world.ledger.start(1, peer=PEER)
    world.ledger.start(2, peer=OTHER)
    world.now += 5
    world.ledger.enter(2, DecodePhase.BOOTSTRAPPING)
    assert world.run(SOFT + 30) == [Group(DecodePhase.RESOLVING, PEER)]
    assert len(world.stalls.open) == 2


def test_another_cause_is_told_although_one_is_open(world):
    world.ledger.start(1, peer=PEER)
    assert len(world.run(SOFT)) == 1
    world.ledger.start(2, peer=OTHER)
    assert world.run(SOFT) == [Group(DecodePhase.RESOLVING, OTHER)]


def test_it_is_told_again_once_it_was_over(world):
    world.ledger.start(1, peer=PEER)
    world.ledger.start(2, peer=PEER)
    assert len(world.run(SOFT)) == 1
    world.now += 1
    world.ledger.enter(1, DecodePhase.WAITING)
    world.look()
    assert world.stalls.open == {}
    world.ledger.end(1, Outcome.SUCCESS)
    assert world.run(SOFT - 1) == []
    assert world.run(1) == [Group(DecodePhase.RESOLVING, PEER)]


def test_that_its_rooms_failed_is_no_end_of_it(world):
    """A peer that hangs, and requests that come and run into their deadline one after the other."""

    def one_more():
        world.ledger.start(int(world.now), peer=PEER)
        world.ledger.end(int(world.now) - 60, Outcome.FAILED, Reason.PEER_LOST)

    assert len(world.run(400, each=one_more)) == 1


def test_it_is_told_again_after_a_long_time(world):
    world.ledger.start(1, peer=PEER)
    assert len(world.run(SOFT + watchdog.REPEAT_S - 1)) == 1
    assert len(world.run(1)) == 1
    assert len(world.run(watchdog.REPEAT_S - 1)) == 0


def test_reports_are_apart_and_none_is_lost():
    world = World(spacing_s=60.0)
    world.ledger.start(1, peer=PEER)
    assert len(world.run(SOFT)) == 1
    world.ledger.start(2, peer=OTHER)
    assert world.run(59) == []
    assert world.run(1) == [Group(DecodePhase.RESOLVING, OTHER)]


def test_a_process_that_was_stopped_accuses_nobody(world):
    world.ledger.start(1, peer=PEER)
    world.run(2)
    world.now += 500
    assert world.stalls.rested(world.now) == pytest.approx(499.0)
    assert world.look() == []
    assert world.run(SOFT - 1) == []
    assert world.run(1) == [Group(DecodePhase.RESOLVING, PEER)]


def test_a_look_that_is_a_little_late_is_no_stop(world):
    world.stalls.rested(world.now)
    assert world.stalls.rested(world.now + SOFT / 2) == 0.0


def test_departures_are_bounded_and_keep_the_latest():
    departures, ledger = Departures(peers=3), Ledger(Role.DECODE, clock=lambda: clock.now)
    clock = SimpleNamespace(now=0.0)
    ledger.on_end.add(departures.ended)
    for room in range(10):
        clock.now += 1
        ledger.start(room, peer=f"10.0.0.{room}:1")
        ledger.end(room, Outcome.SUCCESS)
    assert set(departures.read().values()) == {8.0, 9.0, 10.0}


def test_a_deadline_of_moments_is_left_to_itself():
    deadlines = dict.fromkeys(PrefillPhase, 0.02)
    assert set(watchdog.soft_limits(Role.PREFILL, 30.0, deadlines, 0.02).values()) == {watchdog.LEAST_S}
    assert set(watchdog.soft_limits(Role.PREFILL, 0.5, deadlines, 0.02).values()) == {0.5}
    assert Stalls({LOOP: 0.01}).period_s == watchdog.LEAST_PERIOD_S


def test_soft_limits_are_well_before_what_ends_a_room():
    deadlines = dict.fromkeys(PrefillPhase, 300.0) | {PrefillPhase.BOOTSTRAPPING: 20.0}
    assert watchdog.soft_limits(Role.PREFILL, 30.0, deadlines, 40.0) == {
        "bootstrapping": 10.0,
        "waiting": 30.0,
        "transferring": 20.0,
    }
    limits = watchdog.soft_limits(Role.DECODE, 30.0, dict.fromkeys(DecodePhase, 300.0), 40.0)
    assert set(limits.values()) == {30.0}


# A machine that is busy with something else is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "enter", "succeed", "fail"]), st.integers(0, 5), st.sampled_from(list(DecodePhase))
    ),
    max_size=40,
)


@UNHURRIED
@given(EVENTS)
def test_no_group_is_said_to_stand_still_longer_than_its_first_room_is_there(events):
    world = World()
    for kind, room, phase in events:
        world.now += 1
        match kind:
            case "start":
                world.ledger.start(room, peer=(PEER, OTHER)[room % 2])
            case "enter":
                world.ledger.enter(room, phase)
            case "succeed":
                world.ledger.end(room, Outcome.SUCCESS)
            case "fail":
                world.ledger.end(room, Outcome.FAILED, Reason.PEER_LOST)
    found = stills(world.ledger.live_rooms(), world.departures.read())
    counted = world.ledger.counts()
    assert sum(len(one.rooms) for one in found) == sum(counted.live.values())
    for one in found:
        entered = [room.timeline[-1][1] for room in one.rooms]
        assert entered == sorted(entered)
        assert entered[0] <= one.since <= world.now


@UNHURRIED
@given(st.lists(st.sampled_from(["move", "arrive", "fail", "wait"]), min_size=1, max_size=119))
def test_it_is_never_told_twice_without_movement_in_between(steps):
    world, told = World(), []
    for step in steps:
        world.now += 5
        number = int(world.now)
        oldest = next(iter(world.ledger.live_rooms()), None)
        moved = False
        if step == "arrive":
            world.ledger.start(number, peer=PEER)
        elif oldest is not None and step == "move":
            moved = world.ledger.end(oldest.room, Outcome.SUCCESS) is not None
        elif oldest is not None and step == "fail":
            world.ledger.end(oldest.room, Outcome.FAILED, Reason.PEER_LOST)
        told += ["moved"] if moved else []
        told += ["told" for _ in world.look()]
    assert all((one, other) != ("told", "told") for one, other in itertools.pairwise(told))
