"""Random orders of events, against a model of the ledger that is as simple as it can be: lists, searched in full."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import PHASES, Phase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.room import Anomaly, EndedRoom


@dataclass
class ModelRoom:
    number: int
    generation: int
    entered: list[int] = field(default_factory=lambda: [0])


class Model:
    def __init__(self, role: Role, tombstones: int):
        self.phases = PHASES[role]
        self.tombstones = tombstones
        self.live: list[ModelRoom] = []
        self.started = 0
        self.ended: list[tuple[int, Phase, Reason]] = []
        self.ended_numbers: list[int] = []
        self.anomalies: Counter[Anomaly] = Counter()

    def find(self, number: int, generation: int | None, again: Anomaly) -> ModelRoom | None:
        for room in self.live:
            if room.number == number and generation in (None, room.generation):
                return room
        known = generation is not None or number in self.ended_numbers
        self.anomalies[again if known else Anomaly.UNKNOWN] += 1
        return None

    def start(self, number: int) -> bool:
        if any(room.number == number for room in self.live):
            self.anomalies[Anomaly.DUPLICATE] += 1
            return False
        self.started += 1
        self.live.append(ModelRoom(number, self.started))
        if number in self.ended_numbers:
            self.ended_numbers.remove(number)
        return True

    def enter(self, number: int, generation: int | None, position: int) -> bool:
        room = self.find(number, generation, Anomaly.LATE)
        if room is None:
            return False
        if position <= room.entered[-1]:
            self.anomalies[Anomaly.DUPLICATE if position == room.entered[-1] else Anomaly.REORDERED] += 1
            return False
        room.entered.append(position)
        return True

    def end(self, number: int, generation: int | None, reason: Reason) -> bool:
        room = self.find(number, generation, Anomaly.DUPLICATE)
        if room is None:
            return False
        self.live.remove(room)
        self.ended.append((room.generation, self.phases[room.entered[-1]], reason))
        if number in self.ended_numbers:
            self.ended_numbers.remove(number)
        self.ended_numbers.append(number)
        # What is forgotten stays so, also when a later one is started again.
        del self.ended_numbers[: max(0, len(self.ended_numbers) - self.tombstones)]
        return True


NUMBERS = st.integers(0, 3)
# Of the room's own generation, of none, or of one that may be earlier.
GENERATIONS = st.none() | st.integers(1, 6)
EVENTS = st.one_of(
    st.tuples(st.just("start"), NUMBERS),
    st.tuples(st.just("start"), NUMBERS),
    st.tuples(st.just("enter"), NUMBERS, GENERATIONS, st.integers(0, 6)),
    st.tuples(st.just("enter"), NUMBERS, GENERATIONS, st.integers(0, 6)),
    st.tuples(st.just("end"), NUMBERS, GENERATIONS, st.sampled_from(Reason)),
)


def apply_both(ledger: Ledger, model: Model, event: tuple) -> None:
    kind, number, *rest = event
    if kind == "start":
        assert (ledger.start(number) is not None) == model.start(number)
        return
    generation = rest[0]
    if generation is not None:
        generation = min(generation, max(1, model.started))
    if kind == "enter":
        position = rest[1] % len(model.phases)
        done = ledger.enter(number, model.phases[position], generation=generation)
        assert done == model.enter(number, generation, position)
    else:
        record = ledger.end(number, rest[1].outcome, rest[1], generation=generation)
        assert (record is not None) == model.end(number, generation, rest[1])


@settings(max_examples=300, deadline=None)
@given(
    role=st.sampled_from(Role),
    tombstones=st.integers(0, 4),
    events=st.lists(st.tuples(EVENTS, st.floats(0, 5)), max_size=40),
)
def test_any_order_of_events(role, tombstones, events):
    now = 0.0
    ledger = Ledger(role, clock=lambda: now, tombstones=tombstones, tombstone_seconds=1e9, records=10)
    model, told = Model(role, tombstones), list[EndedRoom]()
    ledger.on_end.add(told.append)
    for event, step in events:
        now += step
        apply_both(ledger, model, event)
        ledger.check()
        counts = ledger.counts()
        counts.check()
        assert counts.started == model.started
        assert counts.anomalies == model.anomalies
        live = [(room.room, room.generation, room.phase) for room in ledger.live_rooms()]
        assert live == [(room.number, room.generation, model.phases[room.entered[-1]]) for room in model.live]
        assert all(ledger.phase(number) == phase for number, _, phase in live)
    assert [(record.generation, record.phase, record.reason) for record in told] == model.ended
    assert len({record.generation for record in told}) == len(told)
    assert ledger.counts().ended == Counter((record.outcome, record.phase, record.reason) for record in told)
    assert ledger.ended_rooms() == told[-10:]
    for record in told:
        times = [entered for _, entered in record.timeline] + [record.at]
        assert times == sorted(times)


@pytest.mark.parametrize("role", Role)
def test_the_model_meets_every_anomaly(role):
    """The property above says little if its events never clash."""
    ledger, model = Ledger(role, tombstones=1), Model(role, 1)
    for event in [
        ("start", 0), ("start", 0), ("enter", 0, None, 1), ("enter", 0, None, 0),
        ("enter", 1, None, 1), ("end", 0, None, Reason.DELIVERED), ("enter", 0, None, 1),
        ("end", 0, None, Reason.DELIVERED),
    ]:  # fmt: skip
        apply_both(ledger, model, event)
    assert set(model.anomalies) == set(Anomaly)
    assert ledger.counts().anomalies == model.anomalies
