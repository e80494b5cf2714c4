"""What prefill has queued and in flight."""

from types import SimpleNamespace

from sglang.srt.disaggregation.reliable.status_lanes import Load, lane

NOW = 100.0


def chunk(room, size=4096, queued=90.0):
    return SimpleNamespace(room=room, bytes=size, queued=queued)


def write(*rooms, posted=95.0):
    sends = [chunk(room) for room in rooms]
    return SimpleNamespace(sends=sends, posted=posted, bytes=sum(send.bytes for send in sends))


def load(queued=(), in_flight=(), stalled=(), arrived=None, looked=NOW):
    return Load(queued, in_flight, stalled, arrived, looked)


def test_everything_is_counted_and_the_oldest_is_known():
    held = load([chunk(2, 10, 96.0)], [write(3, 4)], [write(5, posted=80.0)], arrived=99.0, looked=99.5)
    found = lane({"b", "a"}, ["y", "x"], [chunk(1, 1)], held, NOW)
    assert (found.agents, found.addresses) == (("a", "b"), ("x", "y"))
    assert (found.queued, found.queued_bytes) == (2, 11)
    assert (found.in_flight, found.in_flight_bytes) == (1, 8192)
    assert (found.stalled, found.stalled_bytes) == (1, 4096)
    assert (found.oldest_seconds, found.arrived_seconds, found.looked_seconds) == (20.0, 1.0, 0.5)
    assert found.rooms == {1, 2, 3, 4, 5}


def test_one_with_nothing_to_do_is_not_quiet():
    found = lane(["a"], [], [], load(arrived=10.0, looked=40.0), NOW)
    assert not found.busy
    assert (found.oldest_seconds, found.quiet_seconds) == (0.0, 0.0)


def test_quiet_is_since_the_last_arrival_or_since_there_was_something_to_write():
    waiting = [write(1, posted=70.0)]
    assert lane(["a"], [], [], load((), waiting), NOW).quiet_seconds == 30.0
    assert lane(["a"], [], [], load((), waiting, arrived=80.0), NOW).quiet_seconds == 20.0
    assert lane(["a"], [], [], load((), waiting, arrived=10.0), NOW).quiet_seconds == 30.0
