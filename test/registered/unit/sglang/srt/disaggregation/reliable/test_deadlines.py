import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable.deadlines import Deadlines
from sglang.srt.disaggregation.reliable.ledger import SLICE, Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import DEADLINE_REASON, Outcome, Reason

SECONDS = {
    PrefillPhase.BOOTSTRAPPING: 10.0,
    PrefillPhase.WAITING: 60.0,
    PrefillPhase.TRANSFERRING: 30.0,
}
DEADLINES = Deadlines(Role.PREFILL, SECONDS)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(Role.PREFILL, clock=clock)


def test_a_room_is_overdue_at_its_deadline_and_not_before(ledger, clock):
    ledger.start(7)
    assert DEADLINES.next_due(ledger) == 10.0
    clock.now = 9.999
    assert DEADLINES.take_overdue(ledger) == []
    clock.now = 10.0
    (overdue,) = DEADLINES.take_overdue(ledger)
    assert (overdue.room.room, overdue.reason) == (7, Reason.METADATA_TIMEOUT)
    assert overdue.room.phase_seconds() == {PrefillPhase.BOOTSTRAPPING: 10.0}


def test_it_is_overdue_once_a_phase(ledger, clock):
    ledger.start(7)
    clock.now = 50.0
    assert len(DEADLINES.take_overdue(ledger)) == 1
    assert DEADLINES.take_overdue(ledger) == []
    assert DEADLINES.next_due(ledger) == math.inf
    assert ledger.oldest_age(PrefillPhase.BOOTSTRAPPING) == 50.0
    ledger.enter(7, PrefillPhase.TRANSFERRING)
    assert DEADLINES.next_due(ledger) == 80.0
    clock.now = 80.0
    assert [overdue.reason for overdue in DEADLINES.take_overdue(ledger)] == [Reason.TRANSFER_TIMEOUT]


def test_a_deadline_counts_from_the_start_of_its_phase(ledger, clock):
    ledger.start(7)
    clock.now = 9.0
    ledger.enter(7, PrefillPhase.WAITING)
    clock.now = 68.0
    assert DEADLINES.take_overdue(ledger) == []
    clock.now = 69.0
    assert [overdue.reason for overdue in DEADLINES.take_overdue(ledger)] == [Reason.SEND_TIMEOUT]


def test_a_room_that_ended_is_never_overdue_even_if_its_number_lives_again(ledger, clock):
    ledger.start(7)
    ledger.end(7, Outcome.SUCCESS)
    assert DEADLINES.next_due(ledger) == math.inf
    clock.now = 8.0
    ledger.start(7)
    clock.now = 17.0
    assert DEADLINES.take_overdue(ledger) == []
    assert DEADLINES.next_due(ledger) == 18.0


def test_the_longest_overdue_comes_first_across_phases(ledger, clock):
    ledger.start(1)
    ledger.enter(1, PrefillPhase.TRANSFERRING)  # until 30
    clock.now = 1.0
    ledger.start(3)
    ledger.enter(3, PrefillPhase.TRANSFERRING)  # until 31
    clock.now = 25.0
    ledger.start(2)  # until 35
    clock.now = 40.0
    assert [overdue.room.room for overdue in DEADLINES.take_overdue(ledger)] == [1, 3, 2]


def test_the_oldest_is_found_among_overdue_and_pending_rooms(ledger, clock):
    ledger.start(1)
    clock.now = 15.0
    DEADLINES.take_overdue(ledger)
    ledger.start(2)
    assert ledger.oldest_age(PrefillPhase.BOOTSTRAPPING) == 15.0
    assert ledger.counts().live[PrefillPhase.BOOTSTRAPPING] == 2
    ledger.end(1, Outcome.SUCCESS)
    assert ledger.oldest_age(PrefillPhase.BOOTSTRAPPING) == 0.0
    ledger.check()


def test_many_overdue_rooms_come_in_slices_and_none_is_lost(ledger, clock):
    for room in range(2 * SLICE + 3):
        ledger.start(room)
    clock.now = 11.0
    slices = []
    while DEADLINES.next_due(ledger) <= clock.now:
        slices.append([overdue.room.room for overdue in DEADLINES.take_overdue(ledger)])
    assert [len(rooms) for rooms in slices] == [SLICE, SLICE, 3]
    assert [room for rooms in slices for room in rooms] == list(range(2 * SLICE + 3))


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({}, "missing"),
        ({**SECONDS, DecodePhase.FINISHING: 1.0}, "unknown.*finishing"),
        ({**SECONDS, PrefillPhase.WAITING: 0.0}, "waiting"),
        ({**SECONDS, PrefillPhase.WAITING: -1.0}, "waiting"),
        ({**SECONDS, PrefillPhase.WAITING: math.inf}, "waiting"),
        ({**SECONDS, PrefillPhase.WAITING: math.nan}, "waiting"),
    ],
)
def test_deadlines_name_what_is_wrong_with_them(seconds, message):
    with pytest.raises(ValueError, match=message):
        Deadlines(Role.PREFILL, seconds)


STEPS = st.tuples(st.sampled_from(["start", "enter", "end", "look"]), st.integers(0, 4), st.integers(0, 6))


@settings(max_examples=200, deadline=None)
@given(
    role=st.sampled_from(Role),
    seconds=st.lists(st.floats(0.1, 20), min_size=7, max_size=7),
    steps=st.lists(st.tuples(STEPS, st.floats(0, 6)), max_size=40),
)
def test_every_room_is_overdue_exactly_when_its_phase_is_too_long_and_once(role, seconds, steps):
    clock = Clock()
    ledger = Ledger(role, clock=clock)
    deadlines = Deadlines(role, dict(zip(PHASES[role], seconds, strict=False)))
    fired = Counter[tuple[int, str]]()
    for (kind, room, position), step in steps:
        clock.now += step
        if kind == "start":
            ledger.start(room)
        elif kind == "enter":
            ledger.enter(room, PHASES[role][position % len(PHASES[role])])
        elif kind == "end":
            ledger.end(room, Outcome.SUCCESS)
        else:
            expected = {
                (record.generation, record.phase)
                for record in ledger.live_rooms()
                if deadlines.due(*record.timeline[-1]) <= clock.now
            } - set(fired)
            taken = deadlines.take_overdue(ledger)
            assert {(overdue.room.generation, overdue.room.phase) for overdue in taken} == expected
            assert all(overdue.reason is DEADLINE_REASON[role][overdue.room.phase] for overdue in taken)
            fired.update((overdue.room.generation, overdue.room.phase) for overdue in taken)
        pending = [
            deadlines.due(*record.timeline[-1])
            for record in ledger.live_rooms()
            if (record.generation, record.phase) not in fired
        ]
        assert deadlines.next_due(ledger) == min(pending, default=math.inf)
    assert all(times == 1 for times in fired.values())
