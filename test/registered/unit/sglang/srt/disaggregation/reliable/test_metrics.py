import threading

import pytest
from prometheus_client import CollectorRegistry

from sglang.srt.disaggregation.reliable import metrics
from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.metrics import Metrics
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason


@pytest.fixture
def world():
    class World:
        now = 100.0
        ledger = Ledger(Role.DECODE, clock=lambda: World.now)
        messages = MessageCounters()
        control = Supervisor()
        registry = CollectorRegistry()

    World.metrics = Metrics(World.ledger, World.messages, World.control, World.registry)
    return World


def value(world, name, **labels):
    world.metrics.copy()
    return world.registry.get_sample_value(f"sglang:{name}", labels)


def test_started_is_ended_plus_live(world):
    for room in range(5):
        world.ledger.start(room)
    world.ledger.end(0, Outcome.SUCCESS)
    world.ledger.end(1, Outcome.FAILED, Reason.PEER_LOST)
    assert value(world, "pd_rooms_started_total", role="decode") == 5
    assert value(world, "pd_rooms_live", role="decode", phase="resolving") == 3
    ended = {
        sample.labels["reason"]: sample.value
        for metric in world.registry.collect()
        for sample in metric.samples
        if sample.name == "sglang:pd_rooms_ended_total"
    }
    assert ended == {"delivered": 1, "peer_lost": 1}


def test_copying_twice_counts_nothing_twice(world):
    world.ledger.start(1)
    world.ledger.progress(1, pages=2, bytes=4096)
    world.messages.count("abort", "stale")
    for _ in range(3):
        assert value(world, "pd_rooms_started_total", role="decode") == 1
        assert value(world, "pd_transfer_bytes_total", role="decode") == 4096
        assert value(world, "pd_control_messages_total", kind="abort", result="stale") == 1


def test_ages_and_seconds_in_phases(world):
    world.ledger.start(1)
    world.now = 102.0
    type.__setattr__(world, "now", 102.0)
    assert value(world, "pd_oldest_room_age_seconds", role="decode", phase="resolving") == 2.0
    world.ledger.enter(1, DecodePhase.WAITING)
    type.__setattr__(world, "now", 105.0)
    world.ledger.end(1, Outcome.SUCCESS)
    assert value(world, "pd_phase_seconds_sum", role="decode", phase="resolving") == 2.0
    assert value(world, "pd_phase_seconds_sum", role="decode", phase="waiting") == 3.0
    assert value(world, "pd_oldest_room_age_seconds", role="decode", phase="waiting") == 0.0


def test_a_dead_control_thread_shows(world):
    alive = threading.Event()
    world.control.start("steady", lambda: alive.wait(30) and None)
    assert value(world, "pd_control_thread_up", thread="steady") == 1


def test_publish_copies_until_it_is_stopped():
    stop, copied = threading.Event(), threading.Event()
    thread = threading.Thread(target=metrics.publish, args=(copied.set, stop, 0.01))
    thread.start()
    assert copied.wait(10)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
