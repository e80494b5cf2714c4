import threading

import pytest

from sglang.srt.disaggregation.reliable.quarantine import Quarantine, Release, Writer

A, B = Writer("10.0.0.1", 4000), Writer("10.0.0.1", 4001)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quarantine(clock: Clock) -> Quarantine:
    return Quarantine(clock)


def hold(quarantine: Quarantine, room: int = 7, pages: int = 4, *writers: Writer):
    return quarantine.hold(room, pages, "10.0.0.1:8998", frozenset(writers or (A,)))


def test_pages_are_counted_while_they_are_held(quarantine, clock):
    first = hold(quarantine, 1, 4)
    clock.now += 5
    hold(quarantine, 2, 3)
    counts = quarantine.counts()
    assert (counts.rooms, counts.pages, counts.oldest_seconds) == (2, 7, 5.0)
    clock.now += 1
    quarantine.release(first, acknowledged=True)
    counts = quarantine.counts()
    assert (counts.rooms, counts.pages, counts.oldest_seconds) == (1, 3, 1.0)


def test_what_allowed_each_release_is_counted(quarantine):
    acknowledged, dead, unproven = hold(quarantine, 1), hold(quarantine, 2, 4, B), hold(quarantine, 3)
    quarantine.died(B)
    assert quarantine.release(acknowledged, acknowledged=True) is Release.ACKNOWLEDGED
    assert quarantine.release(dead, acknowledged=False) is Release.PROVEN_DEAD
    assert quarantine.release(unproven, acknowledged=False) is Release.TIMEOUT
    assert quarantine.counts().released == dict.fromkeys(Release, 1)
    assert quarantine.counts().rooms == 0


def test_nothing_is_given_back_twice(quarantine):
    held = hold(quarantine)
    quarantine.release(held, acknowledged=True)
    with pytest.raises(KeyError):
        quarantine.release(held, acknowledged=True)


def test_a_room_is_safe_when_all_of_its_writers_are_dead(quarantine):
    hold(quarantine, 7, 4, A, B)
    quarantine.died(A)
    assert not quarantine.is_dead(7)
    quarantine.died(B)
    assert quarantine.is_dead(7)
    assert not quarantine.is_dead(8)


def test_a_room_without_a_known_writer_is_never_proven_safe(quarantine):
    held = quarantine.hold(7, 4, "10.0.0.1:8998", frozenset())
    assert not quarantine.is_dead(7)
    assert quarantine.release(held, acknowledged=False) is Release.TIMEOUT


def test_a_port_is_dead_only_for_what_it_may_write_to_now(quarantine):
    """Another process may listen there when its next room is held."""
    quarantine.died(A)
    hold(quarantine, 7)
    assert not quarantine.is_dead(7)
    quarantine.died(A)
    assert quarantine.is_dead(7)
    quarantine.clear()
    hold(quarantine, 8)
    assert not quarantine.is_dead(8)


def test_the_pool_is_gone_and_nothing_is_held(quarantine):
    hold(quarantine)
    quarantine.clear()
    counts = quarantine.counts()
    assert (counts.rooms, counts.pages, counts.oldest_seconds) == (0, 0, 0.0)
    assert not any(counts.released.values())


def test_whom_to_ask_after_is_told_as_soon_as_something_is_held(quarantine):
    assert quarantine.wait_for_writers(timeout=0) == frozenset()
    found = []
    thread = threading.Thread(target=lambda: found.append(quarantine.wait_for_writers(20)))
    thread.start()
    hold(quarantine, 7, 4, A, B)
    thread.join(20)
    assert found == [frozenset({A, B})]
    quarantine.died(A)
    assert quarantine.wait_for_writers(timeout=0) == frozenset({B})
