import threading
import time
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import families, metrics, readings
from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor
from sglang.srt.disaggregation.reliable.counts import Reconnects
from sglang.srt.disaggregation.reliable.metrics import Metrics
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.quarantine import Quarantine, Writer
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason


class Manager:
    """What :class:`Metrics` reads of a KV manager."""

    def __init__(self, clock=lambda: 100.0):
        self.accounts = Accounts(Role.DECODE)
        self.accounts.ledger.clock = clock
        self.messages, self.control, self.reconnects = MessageCounters(), Supervisor(), Reconnects()
        self.quarantine = Quarantine(clock)
        self.watchdog = SimpleNamespace(counts=lambda: {("waiting", "loop_wedged"): 2})


@pytest.fixture
def world():
    world = SimpleNamespace(now=100.0)
    world.manager = Manager(lambda: world.now)
    world.ledger = world.manager.accounts.ledger
    world.metrics = Metrics(world.manager)
    return world


def read(world, family):
    return dict(world.metrics.read().samples[family.name])


def test_started_is_ended_plus_live(world):
    for room in range(5):
        world.ledger.start(room)
    world.ledger.end(0, Outcome.SUCCESS)
    world.ledger.end(1, Outcome.FAILED, Reason.PEER_LOST)
    assert read(world, families.STARTED) == {("decode",): 5}
    assert read(world, families.LIVE)["decode", "resolving"] == 3
    assert read(world, families.ENDED) == {
        ("decode", "success", "resolving", "delivered"): 1,
        ("decode", "failed", "resolving", "peer_lost"): 1,
    }


def test_bytes_messages_and_reconnects(world):
    world.ledger.start(1)
    world.ledger.progress(1, pages=2, bytes=4096)
    world.manager.messages.count("abort", "stale")
    world.manager.reconnects.count("healed")
    world.manager.reconnects.count("healed")
    assert read(world, families.BYTES) == {("decode",): 4096}
    assert read(world, families.MESSAGES) == {("abort", "stale"): 1}
    assert read(world, families.RECONNECTS) == {("healed",): 2, ("failed",): 0}


def test_ages_and_seconds_in_phases(world):
    world.ledger.start(1)
    world.now = 102.0
    assert read(world, families.OLDEST)["decode", "resolving"] == 2.0
    world.ledger.enter(1, DecodePhase.WAITING)
    world.now = 105.0
    world.ledger.end(1, Outcome.SUCCESS)
    found = read(world, families.PHASE_SECONDS)
    assert set(found) == {("decode", "resolving"), ("decode", "waiting")}
    *buckets, seconds = found["decode", "waiting"]
    assert seconds == 3.0
    # 3 s are above 2.5 s and at most 5 s.
    assert [bound for bound, rooms in zip(families.PHASE_SECONDS_LE, buckets, strict=False) if rooms] == [5.0]


def test_a_second_that_is_a_bound_counts_up_to_it(world):
    world.ledger.start(1)
    world.now = 105.0
    world.ledger.end(1, Outcome.SUCCESS)
    buckets = read(world, families.PHASE_SECONDS)["decode", "resolving"]
    assert buckets[families.PHASE_SECONDS_LE.index(5.0)] == 1


def test_quarantined_pages(world):
    held = world.manager.quarantine.hold(7, 5, "a:1", frozenset({Writer("10.0.0.1", 4000)}))
    world.now = 103.0
    assert read(world, families.QUARANTINED) == {(): 5}
    assert read(world, families.QUARANTINE_AGE) == {(): 3.0}
    world.manager.quarantine.release(held, acknowledged=True)
    assert read(world, families.QUARANTINED) == {(): 0}
    assert read(world, families.QUARANTINE_RELEASED) == {("acknowledged",): 1, ("proven_dead",): 0, ("timeout",): 0}


def test_a_control_thread_shows(world):
    world.manager.control.start("steady", lambda: threading.Event().wait(30) and None)
    assert read(world, families.THREAD_UP) == {("steady",): 1}


def test_every_family_is_read_or_made_at_the_scrape(world):
    assert {family.name for family in families.FAMILIES} == {*world.metrics.read().samples, families.READING_AGE.name}


def test_publish_hands_on_at_once_and_again_until_it_is_stopped(world, tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    stop = threading.Event()
    thread = threading.Thread(target=metrics.publish, args=(world.metrics.read, stop, 0.01))
    thread.start()
    deadline = time.monotonic() + 20
    world.ledger.start(1)
    while not any(
        dict(one.samples["pd_rooms_started_total"]) == {("decode",): 1} for one in readings.read_all(tmp_path)
    ):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
