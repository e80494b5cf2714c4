"""When a room is complete."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from sglang.srt.disaggregation.reliable.tally import Tally


@dataclass
class Send:
    room: int
    infos: dict = field(default_factory=dict)
    last: bool = False

    @property
    def chunk(self) -> SimpleNamespace:
        return SimpleNamespace(is_last_chunk=self.last)


def test_the_last_chunk_may_arrive_first():
    tally, infos = Tally(), {}
    first, last = Send(1, infos), Send(1, infos, last=True)
    tally.queued(first)
    tally.queued(last)
    assert not tally.written(last)
    assert tally.written(first)
    assert len(tally) == 0


def test_a_room_whose_last_chunk_is_not_queued_is_not_complete():
    tally, infos = Tally(), {}
    first, last = Send(1, infos), Send(1, infos, last=True)
    tally.queued(first)
    assert not tally.written(first)
    tally.queued(last)
    assert tally.written(last)


def test_a_chunk_of_an_earlier_room_of_that_number_counts_for_nothing():
    tally = Tally()
    old, new = Send(1, {}, last=True), Send(1, {}, last=True)
    tally.queued(old)
    tally.queued(new)
    assert not tally.written(old)
    assert tally.written(new)


def test_a_forgotten_room_leaves_nothing():
    tally, send = Tally(), Send(1, last=True)
    tally.queued(send)
    tally.forget(1)
    assert len(tally) == 0
    assert not tally.written(send)
