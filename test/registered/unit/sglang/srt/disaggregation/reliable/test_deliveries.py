"""What prefill remembers of rooms it delivered."""

from sglang.srt.disaggregation.reliable.deliveries import Deliveries


def test_a_room_is_told_from_another_of_its_number():
    deliveries = Deliveries(keep_s=10)
    deliveries.note(1, {"a": 5}, 0.0)
    assert deliveries.has(1, "a", 5)
    assert not deliveries.has(1, "a", 6)
    assert not deliveries.has(1, "b", 5)
    assert not deliveries.has(2, "a", 5)


def test_nothing_is_kept_for_ever():
    deliveries = Deliveries(keep_s=10, limit=3)
    for room in range(5):
        deliveries.note(room, {"a": 1}, float(room))
    assert len(deliveries) == 3
    assert not deliveries.has(1, "a", 1)
    deliveries.note(9, {"a": 1}, 30.0)
    assert len(deliveries) == 1
    assert deliveries.has(9, "a", 1)
