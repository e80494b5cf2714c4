"""The watchdog of a manager that is made up, with a clock of its own."""

import json
import logging
import threading
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import ready, watchdog_ranks, watchdog_stacks, watchdog_thread
from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor, ThreadState
from sglang.srt.disaggregation.reliable.counts import Reconnects
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.quarantine import Quarantine
from sglang.srt.disaggregation.reliable.reasons import Outcome
from sglang.srt.disaggregation.reliable.status import Moment
from sglang.srt.disaggregation.reliable.watchdog_cause import Rank
from sglang.srt.disaggregation.reliable.watchdog_thread import Watchdog

SOFT = 10.0
PEER = "10.0.0.7:8998"


class Manager:
    """What the watchdog reads of a decode's KV manager."""

    def __init__(self, clock, speaks=True):
        self.accounts = Accounts(Role.DECODE, speaks)
        self.accounts.ledger.clock = clock
        self.messages, self.reconnects, self.quarantine = MessageCounters(), Reconnects(), Quarantine()
        self.states = {"decode-control": ThreadState(True, 0, None)}
        self.control = SimpleNamespace(states=lambda: dict(self.states))
        self.watch = SimpleNamespace(is_alive=lambda: True)
        self.disaggregation_mode = SimpleNamespace(value="decode")
        self.prefill_info_table, self.connection_pool = {}, {}
        self.outbox = SimpleNamespace(is_absent=lambda address: False)
        self.watchdog = Watchdog(self)


@pytest.fixture
def world(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_PD_STALL_SECONDS", str(SOFT))
    monkeypatch.setenv("SGLANG_PD_LOOP_TIMEOUT", str(SOFT))
    monkeypatch.setenv("SGLANG_PD_STALL_DIR", str(tmp_path))
    world = SimpleNamespace(now=1000.0, loop_age=0.1, folder=tmp_path, others=[])
    parallel = SimpleNamespace(dp_rank=None, pp_rank=0, tp_rank=0)
    monkeypatch.setattr(watchdog_thread, "get_parallel", lambda: parallel)
    monkeypatch.setattr(ready, "loop_age_s", lambda: world.loop_age)
    monkeypatch.setattr(watchdog_stacks, "find", lambda: None)
    monkeypatch.setattr(watchdog_ranks, "others", lambda pid: world.others)
    monkeypatch.setattr(watchdog_ranks, "ask", lambda rank: Rank(rank.name, 0.1))
    world.manager = Manager(lambda: world.now)
    world.ledger, world.watchdog = world.manager.accounts.ledger, world.manager.watchdog
    return world


def run(world, seconds):
    told = []
    for _ in range(int(seconds)):
        world.now += 1
        told += world.watchdog.look()
    return told


def reports(world):
    return [json.loads(path.read_text()) for path in sorted(world.folder.iterdir())]


def stuck(world, room=17):
    world.ledger.start(room, peer=PEER, rid="a1")
    world.ledger.enter(room, DecodePhase.WAITING)


def test_a_stall_is_a_line_a_file_a_count_and_an_entry(world, caplog):
    stuck(world)
    with caplog.at_level(logging.ERROR):
        run(world, SOFT + 20)
    [report] = reports(world)
    assert [room["room"] for room in report["rooms"]] == [17]
    assert report["stalls"][0]["cause"] == "waiting_for_peer"
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("PD stall: role=decode rank=tp0 cause=waiting_for_peer report=")
    assert str(next(world.folder.iterdir())) in line
    assert {key: number for key, number in world.watchdog.counts().items() if number} == {
        ("waiting", "waiting_for_peer"): 1
    }
    entry = world.watchdog.entry(Moment(0.0, world.now))
    assert entry["told"] == {"waiting": {"waiting_for_peer": 1}}
    assert [one["peer"] for one in entry["open"]] == [PEER]
    assert entry["last_report"]["file"] == str(next(world.folder.iterdir()))


def test_what_may_come_is_counted_from_0(world):
    """Else the first of a kind would be no increase."""
    counts = world.watchdog.counts()
    assert set(counts.values()) == {0}
    assert {("loop", "loop_wedged"), ("waiting", "waiting_for_peer"), ("allocating", "no_pages")} <= counts.keys()
    assert ("transferring", "transfer_stalled") not in counts


def test_it_is_over_when_the_room_gets_on(world):
    stuck(world)
    assert len(run(world, SOFT)) == 1
    world.ledger.end(17, Outcome.SUCCESS)
    world.now += 1
    world.watchdog.look()
    assert world.watchdog.entry(Moment(0.0, world.now))["open"] == []
    assert run(world, 100) == []


def test_a_healthy_system_costs_a_glance(world, monkeypatch):
    stuck(world)
    monkeypatch.setattr(world.ledger, "live_rooms", lambda: pytest.fail("nothing is old enough"))
    run(world, SOFT - 1)


def test_a_blocked_loop_is_told_with_the_stack_of_the_main_thread(world):
    world.loop_age = SOFT
    run(world, 3)
    [report] = reports(world)
    assert report["stalls"][0]["phase"] == "loop"
    assert report["stalls"][0]["cause"] == "loop_wedged"
    assert any("test_a_blocked_loop" in frame for frame in report["stacks"][0]["frames"])
    assert report["native_stacks"]["problem"] == "there is no py-spy here (pip install py-spy)"


def test_a_thread_that_is_down_is_the_cause(world):
    world.manager.states["decode-control"] = ThreadState(False, 3, "ValueError: x")
    stuck(world)
    [stall] = run(world, SOFT)
    assert stall.diagnosis.cause == "control_thread_dead"
    assert "decode-control: down: ValueError: x" in stall.diagnosis.text


def test_a_thread_that_died_while_nothing_moved_is_the_cause_though_it_is_up_again(world):
    stuck(world)
    run(world, SOFT / 2)
    world.manager.states["decode-control"] = ThreadState(True, 1, "ValueError: x")
    [stall] = run(world, SOFT / 2)
    assert stall.diagnosis.cause == "control_thread_dead"
    assert "died and was started again, 1 times" in stall.diagnosis.text


def test_one_that_died_long_ago_is_not(world):
    world.manager.states["decode-control"] = ThreadState(True, 1, "ValueError: x")
    run(world, 3 * SOFT)
    stuck(world)
    [stall] = run(world, SOFT)
    assert stall.diagnosis.cause == "waiting_for_peer"


def test_its_own_thread_is_not_the_cause(world):
    world.manager.states["watchdog"] = ThreadState(False, 1, "ValueError: x")
    stuck(world)
    assert run(world, SOFT)[0].diagnosis.cause == "waiting_for_peer"


def test_a_folder_that_cannot_be_written_leaves_the_line(world, monkeypatch, caplog):
    (world.folder / "file").write_text("")
    monkeypatch.setenv("SGLANG_PD_STALL_DIR", str(world.folder / "file"))
    stuck(world)
    with caplog.at_level(logging.ERROR):
        assert len(run(world, SOFT)) == 1
    assert "report=none (" in caplog.text
    assert run(world, 30) == []


def test_a_rank_that_does_not_speak_leaves_it_to_the_one_that_does(world, monkeypatch):
    silent = Manager(lambda: world.now, speaks=False)
    world.others = [SimpleNamespace(name="tp0")]
    monkeypatch.setattr(watchdog_ranks, "has_told", lambda rank: True)
    silent.accounts.ledger.start(17, peer=PEER)
    world.ledger, world.watchdog = silent.accounts.ledger, silent.watchdog
    run(world, SOFT + watchdog_thread.SILENT_S)
    assert reports(world) == []
    assert sum(silent.watchdog.counts().values()) == 0


def test_a_rank_that_does_not_speak_tells_what_no_other_sees(world, monkeypatch):
    silent = Manager(lambda: world.now, speaks=False)
    world.others = [SimpleNamespace(name="tp0")]
    monkeypatch.setattr(watchdog_ranks, "has_told", lambda rank: False)
    silent.accounts.ledger.start(17, peer=PEER)
    world.ledger, world.watchdog = silent.accounts.ledger, silent.watchdog
    assert run(world, SOFT) == []
    assert len(run(world, watchdog_thread.SILENT_S)) == 1
    assert len(reports(world)) == 1


def test_a_pause_of_its_own_is_a_line(world, caplog):
    world.watchdog.look()
    world.now += 100
    world.watchdog.look()
    assert "the watchdog did not run for 99.0 s" in caplog.text


def test_it_runs_as_a_control_thread(world):
    looks = threading.Event()
    world.watchdog.look = looks.set
    supervisor = Supervisor()
    supervisor.start(watchdog_thread.THREAD, world.watchdog.run)
    assert looks.wait(10)
    assert supervisor.thread_up(watchdog_thread.THREAD)
