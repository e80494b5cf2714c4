import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import Anomaly, Room


def room_on(role: Role = Role.PREFILL) -> Room:
    return Room(role, room=7, generation=1, now=100.0)


def test_a_room_starts_in_the_first_phase():
    room = room_on(Role.DECODE)
    assert room.phase == DecodePhase.RESOLVING
    assert room.entered == 100.0


def test_phases_may_be_left_out_and_seconds_are_kept_for_those_entered():
    room = room_on()
    assert room.enter(PrefillPhase.TRANSFERRING, 103.0) is None
    record = room.record(104.5)
    assert record.phase_seconds() == {PrefillPhase.BOOTSTRAPPING: 3.0, PrefillPhase.TRANSFERRING: 1.5}
    assert record.seconds == 4.5


def test_the_same_or_an_earlier_phase_changes_nothing():
    room = room_on()
    room.enter(PrefillPhase.TRANSFERRING, 103.0)
    before = room.record(110.0)
    assert room.enter(PrefillPhase.TRANSFERRING, 105.0) is Anomaly.DUPLICATE
    assert room.enter(PrefillPhase.WAITING, 106.0) is Anomaly.REORDERED
    assert room.record(110.0) == before


def test_a_phase_of_the_other_role_is_a_mistake_in_the_code():
    with pytest.raises(ValueError, match="finishing"):
        room_on().enter(DecodePhase.FINISHING, 101.0)


def test_success():
    room = room_on()
    room.enter(PrefillPhase.TRANSFERRING, 101.0)
    record = room.end(Reason.DELIVERED, 102.0)
    assert (record.outcome, record.reason, record.phase) == (
        Outcome.SUCCESS,
        Reason.DELIVERED,
        PrefillPhase.TRANSFERRING,
    )
    assert record.at == 102.0


def test_identify_keeps_what_it_is_not_given():
    room = room_on()
    room.identify(rid="r", peer=None, incarnation=None)
    room.identify(rid=None, peer="p", incarnation="i")
    record = room.record(101.0)
    assert (record.rid, record.peer, record.incarnation) == ("r", "p", "i")


@given(
    role=st.sampled_from(Role), steps=st.lists(st.tuples(st.integers(0, 6), st.floats(-10, 10))), end=st.floats(-99, 99)
)
def test_the_timeline_only_goes_forward_whatever_comes(role, steps, end):
    room, now = Room(role, 1, 1, 0.0), 0.0
    for position, step in steps:
        now += step
        room.enter(PHASES[role][position % len(PHASES[role])], now)
    record = room.end(Reason.INTERNAL_ERROR, end)
    phases = [PHASES[role].index(phase) for phase, _ in record.timeline]
    times = [entered for _, entered in record.timeline]
    assert phases[0] == 0
    assert phases == sorted(set(phases))
    assert times == sorted(times)
    assert record.at >= times[-1]
    assert all(seconds >= 0 for seconds in record.phase_seconds().values())
