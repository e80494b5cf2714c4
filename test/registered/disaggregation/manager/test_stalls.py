"""What the watchdog of a real manager reports when nothing moves, and that it does so once."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.managers import FAILED, SUCCESS, TCP, TRANSFERRING, WAITING, Nursery, Pair
from sglang.srt.disaggregation.reliable import watchdog_stacks

SOFT_S = 2.0
PAGES = list(range(64))
# Once the report is there, so long nothing more may come: as many looks as were needed for the first, and more.
AFTERWARDS_S = SOFT_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stalls"


@pytest.fixture
def pair(nursery: Nursery, request: pytest.FixtureRequest, folder: Path) -> Iterator[Pair]:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("needs our classes: upstream keeps no accounts")
    pair = Pair(
        nursery,
        SGLANG_PD_STALL_SECONDS=str(SOFT_S),
        SGLANG_PD_LOOP_TIMEOUT=str(SOFT_S),
        prefill={"SGLANG_PD_STALL_DIR": str(folder / "prefill")},
        decode={"SGLANG_PD_STALL_DIR": str(folder / "decode")},
        # Nothing ends by itself before the test is over.
        SGLANG_PD_TRANSFER_TIMEOUT="60",
        **TCP,
    )
    pair.transfer()
    yield pair
    pair.close()


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def wait_for(found: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result


def the_only_report(folder: Path) -> dict[str, Any]:
    wait_for(lambda: reports(folder))
    time.sleep(AFTERWARDS_S)
    [report] = reports(folder)
    return report


def opened(pair: Pair, rooms: int) -> list[int]:
    """Rooms whose metadata prefill has."""
    found = [pair.room() for _ in range(rooms)]
    for room in found:
        pair.open(room, len(PAGES))
    for room in found:
        assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
    return found


def test_a_stopped_decode_is_one_stalled_transfer(pair: Pair, folder: Path):
    rooms = opened(pair, 8)
    pair.decode.signal(signal.SIGSTOP)
    for room in rooms:
        pair.prefill.call("send", room, PAGES, 0)
    start = time.monotonic()
    report = the_only_report(folder / "prefill")
    print(f"reported within {time.monotonic() - start - AFTERWARDS_S:.2f} s, soft limit {SOFT_S:g} s")
    assert (report["role"], report["pid"]) == ("prefill", pair.prefill.pid)
    assert {stall["cause"] for stall in report["stalls"]} == {"transfer_stalled"}
    decode = pair.decode.address.removeprefix("tcp://")
    assert report["stalls"][0]["peer"] == decode
    stuck = {room["room"]: room for room in report["rooms"]}
    assert stuck.keys() == set(rooms)
    first = stuck[rooms[0]]
    assert [step["phase"] for step in first["timeline"]] == ["bootstrapping", "waiting", "transferring"]
    assert first["timeline"][-1]["seconds"] >= SOFT_S
    [lane] = report["status"]["lanes"]
    assert lane["addresses"] == [decode]
    assert lane["in_flight"]["writes"] > 0
    assert lane["in_flight"]["bytes"] > 0
    assert report["peers"]["peers"][0]["address"] == decode
    names = {stack["thread"] for stack in report["stacks"]}
    assert {"MainThread", "prefill-control"} <= names
    assert any(name.startswith("transfer-") for name in names)
    assert pair.prefill.call("stalls")["told"] == {"transferring": {"transfer_stalled": 1}}

    pair.decode.signal(signal.SIGCONT)
    for room in rooms:
        for role in (pair.prefill, pair.decode):
            assert role.call("wait", room, [FAILED, SUCCESS], 5.0)[0] == SUCCESS
    wait_for(lambda: not pair.prefill.call("stalls")["open"])
    assert len(reports(folder / "prefill")) == 1
    # It was stopped itself, and what stood still meanwhile is not counted against anyone.
    assert reports(folder / "decode") == []


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_blocked_main_thread_is_one_wedged_loop_with_its_stack(pair: Pair, folder: Path, side: str):
    [room] = opened(pair, 1)
    role = getattr(pair, side)
    blocked = threading.Thread(target=role.call, args=("block", 3 * SOFT_S))
    blocked.start()
    try:
        report = the_only_report(folder / side)
    finally:
        blocked.join()
    assert report["role"] == side
    assert {stall["cause"] for stall in report["stalls"]} == {"loop_wedged"}
    assert [one["room"] for one in report["rooms"]] == [room]
    assert report["rooms"][0]["timeline"]
    main = next(stack for stack in report["stacks"] if stack["main"])
    assert any(frame.startswith("block (") for frame in main["frames"])
    assert report["ranks"][0]["frame"].startswith("block (")
    if watchdog_stacks.find():
        assert "MainThread" in report["native_stacks"]["text"]
    else:
        assert "no py-spy" in report["native_stacks"]["problem"]
    # The other side's rooms do not move either, and it knows that it is not its own loop.
    other = "decode" if side == "prefill" else "prefill"
    [report] = wait_for(lambda: reports(folder / other))
    assert {stall["cause"] for stall in report["stalls"]} <= {"waiting_for_peer", "not_scheduled"}


def test_a_system_that_moves_is_not_reported(pair: Pair, folder: Path):
    until = time.monotonic() + 2.5 * SOFT_S
    [slow] = opened(pair, 1)
    while time.monotonic() < until:
        pair.transfer()
        for role in (pair.prefill, pair.decode):
            role.call("turn")
    # One that others overtake is no standstill.
    assert pair.prefill.call("poll", slow) in (WAITING, TRANSFERRING)
    assert [reports(folder / side) for side in ("prefill", "decode")] == [[], []]
    assert pair.prefill.call("stalls") == {"told": {}, "open": [], "last_report": None}
