"""What two real roles say of themselves, their rooms and each other, over their own ports."""

import http.client
import json
import threading
import time
from collections.abc import Iterator

import pytest

from harness.managers import FAILED, SUCCESS, TCP, UPSTREAM, WAITING, Nursery, Pair

SIDES = ("prefill", "decode")
PAGES = list(range(8))


@pytest.fixture(scope="module")
def pair(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("needs our classes: upstream keeps no accounts")
    pair = Pair(nursery, SGLANG_PD_TRANSFER_TIMEOUT="31", **TCP)
    pair.transfer()
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def ports(pair: Pair) -> dict[str, int]:
    return {side: getattr(pair, side).call("listen") for side in SIDES}


def ask(port: int, path: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def test_a_room_is_live_and_then_ended_on_both_sides(pair: Pair, ports: dict[str, int]):
    room = pair.room()
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 10.0)[0] == WAITING
    for side, phase in (("prefill", "waiting"), ("decode", "waiting")):
        [live] = ask(ports[side], f"/pd/rooms?room={room}")["rooms"]
        assert (live["state"], live["phase"], live["outcome"], live["ended_at"]) == ("live", phase, None, None)
        assert ask(ports[side], f"/pd/rooms?room={room}&state=ended")["rooms"] == []
        assert [peer["live_rooms"] for peer in ask(ports[side], "/pd/peers")["peers"]] == [1]
        assert ask(ports[side], "/pd/status")["rooms"]["live"][phase]["rooms"] == 1
    pair.prefill.call("send", room, PAGES, room % pair.decode.spec.aux_slots)
    for role in (pair.decode, pair.prefill):
        assert role.call("wait", room, [SUCCESS, FAILED], 10.0)[0] == SUCCESS
        role.call("clear", room)
    for side in SIDES:
        [ended] = ask(ports[side], f"/pd/rooms?room={room}")["rooms"]
        assert (ended["state"], ended["outcome"], ended["reason"]) == ("ended", "success", "delivered")
        assert ended["pages"] == len(PAGES)
        assert ended["bytes"] == len(PAGES) * pair.prefill.spec.page_bytes * 2 * pair.prefill.spec.layers
        times = [ended["started_at"], *(step["at"] for step in ended["timeline"]), ended["ended_at"]]
        assert times == sorted(times)
        assert time.time() - 60 < ended["started_at"] <= ended["ended_at"] <= time.time() + 1
        assert ask(ports[side], f"/pd/rooms?room={room}&state=live")["rooms"] == []
        [peer] = ask(ports[side], "/pd/peers")["peers"]
        assert (peer["live_rooms"], peer["recently_ended"]["success"]) == (0, 2)


def test_a_failed_room_is_found_by_its_reason_and_counted_for_its_peer(pair: Pair, ports: dict[str, int]):
    room = pair.room()
    pair.open(room)
    assert pair.prefill.call("wait", room, [WAITING], 10.0)[0] == WAITING
    pair.prefill.call("abort", room)
    assert pair.decode.call("wait", room, [FAILED], 10.0)[0] == FAILED
    pair.decode.call("failure", room)
    pair.prefill.call("clear", room)
    for side, reason in (("prefill", "client_abort"), ("decode", "prefill_abort")):
        rooms = ask(ports[side], f"/pd/rooms?reason={reason}&state=ended")["rooms"]
        assert [(one["room"], one["reason"]) for one in rooms] == [(room, reason)]
        assert ask(ports[side], "/pd/status")["rooms"]["aborted_by_reason"] == {reason: 1}
        [peer] = ask(ports[side], "/pd/peers")["peers"]
        assert peer["recently_ended"]["aborted"] == 1


def test_each_side_tells_what_it_runs_with(pair: Pair, ports: dict[str, int]):
    prefill, decode = (ask(ports[side], "/pd/status") for side in SIDES)
    for said in (prefill, decode):
        assert set(said["transport"]["backends"]) == {"UCX"}
        assert said["transport"]["memory"] == ["DRAM"]
        assert said["transport"]["ucx"] == TCP
        assert said["settings"]["environment"]["SGLANG_PD_TRANSFER_TIMEOUT"] == "31"
        assert said["stalls"] == {"told": {}, "open": [], "last_report": None}
    assert decode["lanes"] == []
    [lane] = prefill["lanes"]
    assert (lane["agents"], lane["addresses"]) == ([decode["agent"]], [decode["address"]])
    assert lane["queued"] == {"chunks": 0, "bytes": 0}
    assert lane["in_flight"] == lane["stalled"] == {"writes": 0, "bytes": 0}
    assert lane["arrived_seconds"] < 60


def test_each_side_knows_the_other_as_it_knows_itself(pair: Pair, ports: dict[str, int]):
    prefill, decode = (ask(ports[side], "/pd/status") for side in SIDES)
    assert (prefill["pid"], decode["pid"]) == (pair.prefill.pid, pair.decode.pid)
    assert prefill["environment"]["SGLANG_PD_TRANSFER_TIMEOUT"] == "31"
    assert all(thread["up"] for said in (prefill, decode) for thread in said["threads"].values())
    assert {"prefill-control", "deadlines"} <= prefill["threads"].keys()
    assert {"decode-control", "quarantine", "deadlines"} <= decode["threads"].keys()
    assert prefill["control_messages"]["registration"] == {"handled": 1}
    [of_prefill] = ask(ports["prefill"], "/pd/peers")["peers"]
    assert (of_prefill["agent"], of_prefill["address"]) == (decode["agent"], decode["address"])
    assert (of_prefill["protocol"], of_prefill["absent"]) == (2, False)
    assert of_prefill["connection"] == {"closed": 0, "whole": True, "healing": False}
    assert of_prefill["layout"]["page_bytes"] == pair.prefill.spec.page_bytes * 2 * pair.prefill.spec.layers
    [of_decode] = ask(ports["decode"], "/pd/peers")["peers"]
    assert of_decode["address"] == f"127.0.0.1:{pair.prefill.spec.bootstrap_port}"
    assert [(rank["address"], rank["absent"]) for rank in of_decode["ranks"]] == [(prefill["address"], False)]
    assert of_decode["layout"]["page_size"] == pair.prefill.spec.page_size


@pytest.mark.parametrize("side", SIDES)
def test_it_answers_while_the_main_thread_is_blocked(pair: Pair, ports: dict[str, int], side: str):
    role = getattr(pair, side)
    blocked = threading.Thread(target=role.call, args=("block", 3.0))
    blocked.start()
    slowest, until = 0.0, time.monotonic() + 1.5
    try:
        while time.monotonic() < until:
            for path in ("/pd/status", "/pd/rooms", "/pd/peers"):
                start = time.monotonic()
                ask(ports[side], path)
                slowest = max(slowest, time.monotonic() - start)
        assert blocked.is_alive()
    finally:
        blocked.join()
    print(f"{side}: the slowest answer took {slowest:.3f} s")
    assert slowest < 1


def test_with_upstreams_classes_the_process_still_answers(nursery: Nursery):
    pair = Pair(nursery, **UPSTREAM, **TCP)
    pair.transfer()
    for side in SIDES:
        role = getattr(pair, side)
        port = role.call("listen")
        said = ask(port, "/pd/status")
        assert (said["pid"], said["role"], said["classes"]) == (role.pid, side, "NixlKVManager")
        assert (said["agent"], said["rooms"]) == (role.info["agent"], None)
        assert said["threads"]
        assert all(thread["up"] for thread in said["threads"].values())
        assert ask(port, "/pd/rooms")["rooms"] is None
        assert ask(port, "/pd/peers")["peers"] is None
    pair.close()
