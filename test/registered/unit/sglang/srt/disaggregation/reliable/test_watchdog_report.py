"""What is told of a stall."""

import json
from dataclasses import replace

import pytest

from sglang.srt.disaggregation.reliable import watchdog_report
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.status import Moment
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.watchdog import Group, Stall
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Diagnosis, Rank
from sglang.srt.disaggregation.reliable.watchdog_report import MARK, Scene, block, body, rooms_of
from sglang.srt.disaggregation.reliable.watchdog_stacks import Frame, Place, Stack

EPOCH = 1_700_000_000.0
PEER, OTHER = "10.0.0.7:8998", "10.0.0.8:8998"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def stall(group, rooms, cause=Cause.WAITING_FOR_PEER):
    return Stall(group, Diagnosis(cause, group.peer, "prefill is silent"), 60.0, 90.0, tuple(rooms))


@pytest.fixture
def scene():
    """Rooms 1 to 3 wait for one prefill and are stuck, 4 and 5 for another; 0 is older and not stuck."""
    clock = Clock()
    ledger = Ledger(Role.DECODE, clock=clock)
    for room in range(6):
        clock.now = 50.0 + room
        ledger.start(room, peer=PEER if room in (1, 2, 3) else OTHER, rid="a b" if room == 1 else None)
        ledger.enter(room, DecodePhase.WAITING)
    clock.now = 100.0
    live = list(ledger.live_rooms())
    lane = Lane(("agent",), ("10.0.0.2:1",), 1, 4096, 2, 8192, 0, 0, 31.0, None, 0.1, frozenset({1}))
    stacks = (
        Stack("MainThread", True, False, (Frame("/a/x.py", 3, "block"), Frame("/a/y.py", 4, "loop"))),
        Stack("peers", False, True, (Frame("/a/z.py", 5, "poll"),)),
    )
    return Scene(
        now=Moment(EPOCH, 100.0),
        stalls=(stall(Group("waiting", PEER), live[1:4]), stall(Group("waiting", OTHER), live[4:6])),
        live=live,
        status={
            "role": "decode",
            "rank": "tp0",
            "pid": 71,
            "at": EPOCH,
            "threads": {"peers": {"up": False, "restarts": 1, "last_error": "ValueError: x"}},
            "quarantine": {"rooms": 2, "pages": 8},
        },
        peers={"peers": []},
        own=Rank("tp0", 0.5, Place.ELSEWHERE, "block (/a/x.py:3)"),
        others=(Rank("tp1", problem="no answer within 1 s"),),
        lanes=(lane, replace(lane, queued=0, in_flight=0)),
        stacks=stacks,
        native="Thread 71",
        native_problem=None,
    )


def test_the_stuck_rooms_come_first_in_turn_and_none_twice(scene):
    assert [room.room for room in rooms_of(scene)] == [1, 4, 2, 5, 3, 0]


def test_rooms_are_bounded(scene, monkeypatch):
    monkeypatch.setattr(watchdog_report, "MOST_ROOMS", 2)
    assert [room.room for room in rooms_of(scene)] == [1, 4]
    assert body(scene)["live_rooms"] == 6


def test_the_file_has_everything(scene):
    said = body(scene)
    assert json.loads(json.dumps(said)) == said
    assert said["schema"] == {"name": "sglang-pd/stall", "version": 1}
    assert (said["role"], said["rank"], said["pid"], said["at"]) == ("decode", "tp0", 71, EPOCH)
    assert said["stalls"][0] == {
        "phase": "waiting",
        "peer": PEER,
        "cause": "waiting_for_peer",
        "text": "prefill is silent",
        "rooms": 3,
        "since_at": EPOCH - 40,
        "seconds": 40.0,
    }
    assert [step["phase"] for step in said["rooms"][0]["timeline"]] == ["resolving", "waiting"]
    assert said["rooms"][0]["timeline"][1]["seconds"] == 49.0
    assert said["ranks"][1]["problem"] == "no answer within 1 s"
    assert said["stacks"][0] == {
        "thread": "MainThread",
        "main": True,
        "daemon": False,
        "frames": ["block (/a/x.py:3)", "loop (/a/y.py:4)"],
    }
    assert said["native_stacks"] == {"text": "Thread 71", "problem": None}
    assert said["status"]["quarantine"] == {"rooms": 2, "pages": 8}


def test_the_block_for_the_log(scene):
    lines = block(scene, "/s/stall-1.json").split("\n  ")
    assert lines == [
        f"{MARK}role=decode rank=tp0 cause=waiting_for_peer report=/s/stall-1.json",
        f"waiting with {PEER}: 3 rooms, nothing moved for 40.0 s: prefill is silent",
        f"waiting with {OTHER}: 2 rooms, nothing moved for 40.0 s: prefill is silent",
        f"room 1: rid=a%20b peer={PEER} pages=0 bytes=0 resolving_s=0.000 waiting_s=49.000",
        f"room 4: rid=- peer={OTHER} pages=0 bytes=0 resolving_s=0.000 waiting_s=46.000",
        f"room 2: rid=- peer={PEER} pages=0 bytes=0 resolving_s=0.000 waiting_s=48.000",
        f"room 5: rid=- peer={OTHER} pages=0 bytes=0 resolving_s=0.000 waiting_s=45.000",
        f"room 3: rid=- peer={PEER} pages=0 bytes=0 resolving_s=0.000 waiting_s=47.000",
        "lane to 10.0.0.2:1: queued 1 (4096 bytes), in flight 2 (8192 bytes), stalled 0, oldest 31.0 s, "
        "looked 0.1 s ago",
        "quarantine: 2 rooms, 8 pages",
        "threads down: peers (ValueError: x)",
        "scheduler's loop: 0.5 s old; its thread, innermost first, place=elsewhere:",
        "  block (/a/x.py:3)",
        "  loop (/a/y.py:4)",
    ]


def test_native_frames_are_wanted_where_the_process_stands_still_anyway():
    assert {str(cause) for cause in watchdog_report.WANT_NATIVE} == {"loop_wedged", "rank_out_of_step"}
