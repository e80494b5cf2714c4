"""The benchmark of PD transfer runs, and notices a byte that did not arrive."""

import pytest

from harness.managers import Nursery
from pd_transfer.geometry import Cell
from pd_transfer.measure import Size, idle, raw_samples, samples
from pd_transfer.pairs import SIDES, TRANSPORTS, pair

CELL = Cell(2, 3)
FEW = Size(seconds=0, rooms=12)
PAUSE_S = 0.0005


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_room_of_a_sample_arrives(nursery: Nursery, transport: str):
    found = samples(nursery, SIDES, transport, CELL, Size(seconds=0, rooms=16), PAUSE_S)
    assert list(found) == ["ours", "upstream"]
    for sample in found.values():
        assert sample.rooms == 16
        # Two bursts of four rooms per slot.
        assert sample.verified_bytes == 2 * CELL.in_flight * CELL.room_bytes
        assert 0 < sample.p50_s <= sample.p99_s <= sample.wall_s
        assert sample.prefill_cpu_s > 0
        assert sample.decode_cpu_s > 0


def test_a_damaged_page_is_an_error(nursery: Nursery):
    with pair(nursery, "ours", "shm", CELL, PAUSE_S) as one:
        one.run(4)
        assert one.verify() == CELL.in_flight * CELL.room_bytes
        one.decode.call("fill", [int(CELL.slots(1)[0, 1])], 0, 99)
        with pytest.raises(RuntimeError, match="not those that prefill sent"):
            one.verify()


def test_a_failed_room_ends_the_run_with_its_reason(nursery: Nursery):
    with pair(nursery, "ours", "shm", CELL, PAUSE_S) as one:
        one.run(4)
        for room in (100, 101):
            one.prefill.call("open", room)
            one.prefill.call("abort", room)
        one.decode.call("begin", 100, 2)
        with pytest.raises(RuntimeError, match=r"room 10[01] failed: .*[Aa]bort"):
            one.decode.call("finished", 10.0)


def test_raw_nixl_moves_the_same_rooms(nursery: Nursery):
    found = raw_samples(nursery, "shm", CELL, FEW)
    assert sorted(found) == [1, CELL.in_flight]
    assert all(sample.rooms == FEW.rooms for sample in found.values())


def test_upstreams_idle_pair_spins_and_ours_rests(nursery: Nursery):
    used = {side: sum(idle(nursery, side, "shm", 1.0, PAUSE_S).values()) for side in SIDES}
    assert used["ours"] < used["upstream"] / 2
