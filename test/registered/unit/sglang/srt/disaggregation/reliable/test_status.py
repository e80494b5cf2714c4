"""What a rank says of itself, its rooms and its peers, from readings."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import status_peers, status_rooms, watchdog_report
from sglang.srt.disaggregation.reliable.control import ThreadState
from sglang.srt.disaggregation.reliable.failure import failure
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.links import LinkState
from sglang.srt.disaggregation.reliable.phases import DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.quarantine import Quarantine, Writer
from sglang.srt.disaggregation.reliable.query import room_query
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.search import RoomFilter, find_rooms
from sglang.srt.disaggregation.reliable.status import Moment, Numbers, Speaker, status
from sglang.srt.disaggregation.reliable.status_lanes import Load, lane
from sglang.srt.disaggregation.reliable.status_peers import Decode, PrefillRank
from sglang.srt.disaggregation.reliable.status_scheduler import Turns
from sglang.srt.disaggregation.reliable.watchdog import Group, Stall
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Diagnosis
from sglang.srt.disaggregation.reliable.writes import Write

STALL = Stall(
    Group(DecodePhase.WAITING, "10.0.0.7:8998"),
    Diagnosis(Cause.WAITING_FOR_PEER, "10.0.0.7:8998", "prefill is silent"),
    since=60.0,
    found=90.0,
    rooms=(),
)

# The monotonic clock says 100 where the wall clock says this.
EPOCH = 1_700_000_000.0
NOW = Moment(EPOCH, 100.0)
WHOLE = LinkState(epoch=0, whole=True, healing=False)


def speaker(role=Role.DECODE):
    return Speaker(
        role=str(role),
        rank="tp0",
        pid=71,
        started_at=EPOCH - 60,
        incarnation="0a1b2c3d@1699999940",
        versions={"sglang": "0.5.23", "sglang-pd": "0.1.0", "nixl": None},
        environment={"SGLANG_PD_RELIABLE": "1"},
        classes="ReliableKVManager",
        speaks=True,
        agent="agent-1",
        address="10.0.0.1:4001",
        coordinates={"tp_rank": 0, "dp_rank": None},
        settings={"flags": {"page_size": 64}, "environment": {"UCX_TLS": "tcp"}},
        transport={"backends": {"UCX": {"num_threads": "8"}}, "memory": ["VRAM"], "ucx": {"UCX_TLS": "tcp"}},
    )


LANE = lane(
    ["agent-2"],
    ["10.0.0.2:4001"],
    [SimpleNamespace(room=4, bytes=4096, queued=99.0)],
    Load([], [Write([SimpleNamespace(room=3, bytes=8192)], posted=98.0)], [], arrived=97.5, looked=99.9),
    100.0,
)


@pytest.fixture
def world():
    world = SimpleNamespace(now=100.0)
    world.clock = lambda: world.now
    world.ledger = Ledger(Role.DECODE, clock=world.clock)
    return world


def numbers(world, **more):
    quarantine = Quarantine(world.clock)
    quarantine.hold(9, 4, "a", frozenset({Writer("10.0.0.2", 1)}))
    world.now += 2
    return Numbers(
        counts=world.ledger.counts(),
        messages={("status", "handled"): 3, ("status", "stale"): 1, ("unknown", "foreign"): 2},
        reconnects={"healed": 1, "failed": 0},
        held=quarantine.counts(),
        lanes=[LANE],
        stalls={
            "told": {"waiting": {"waiting_for_peer": 1}},
            "open": [watchdog_report.stall_entry(STALL, NOW)],
            "last_report": {"at": EPOCH, "file": "/a/stall.json"},
        },
    )


def as_json(answer):
    """Every answer goes out as JSON, and must survive that."""
    assert json.loads(json.dumps(answer)) == answer
    return answer


def test_status_begins_with_its_schema_and_who_speaks(world):
    said = as_json(status(speaker(), NOW, 60.0, {}, 0.25, numbers(world)))
    assert said["schema"] == {"name": "sglang-pd/status", "version": 1}
    assert (said["role"], said["rank"], said["pid"], said["at"]) == ("decode", "tp0", 71, EPOCH)
    assert said["incarnation"] == "0a1b2c3d@1699999940"
    assert (said["started_at"], said["age_seconds"], said["loop_age_seconds"]) == (EPOCH - 60, 60.0, 0.25)
    assert said["versions"] == {"sglang": "0.5.23", "sglang-pd": "0.1.0", "nixl": None}
    assert said["environment"] == {"SGLANG_PD_RELIABLE": "1"}
    assert said["coordinates"] == {"tp_rank": 0, "dp_rank": None}
    assert said["settings"] == {"flags": {"page_size": 64}, "environment": {"UCX_TLS": "tcp"}}
    assert said["transport"]["backends"] == {"UCX": {"num_threads": "8"}}
    assert (said["scheduler"], said["overlap"]) == (None, None)


def test_status_tells_the_lanes(world):
    [said] = as_json(status(speaker(), NOW, 60.0, {}, None, numbers(world)))["lanes"]
    assert said == {
        "agents": ["agent-2"],
        "addresses": ["10.0.0.2:4001"],
        "queued": {"chunks": 1, "bytes": 4096},
        "in_flight": {"writes": 1, "bytes": 8192},
        "stalled": {"writes": 0, "bytes": 0},
        "oldest_seconds": 2.0,
        "arrived_seconds": 2.5,
        "looked_seconds": 0.1,
    }


def test_status_tells_the_stalls(world):
    said = as_json(status(speaker(), NOW, 60.0, {}, None, numbers(world)))["stalls"]
    assert said["told"] == {"waiting": {"waiting_for_peer": 1}}
    assert said["open"] == [
        {
            "phase": "waiting",
            "peer": "10.0.0.7:8998",
            "cause": "waiting_for_peer",
            "text": "prefill is silent",
            "rooms": 0,
            "since_at": EPOCH - 40,
            "seconds": 40.0,
        }
    ]


def test_status_tells_the_threads(world):
    threads = {"peers": ThreadState(up=False, restarts=2, last_error="ValueError: x")}
    said = status(speaker(), NOW, 60.0, threads, None, numbers(world))
    assert said["threads"] == {"peers": {"up": False, "restarts": 2, "last_error": "ValueError: x"}}
    assert said["loop_age_seconds"] is None


def test_status_counts_the_rooms(world):
    ledger = world.ledger
    for room in range(1, 8):
        ledger.start(room)
    ledger.progress(1, pages=2, bytes=8192)
    ledger.end(1, Outcome.SUCCESS)
    ledger.end(1, Outcome.SUCCESS)
    for room, reason in ((2, Reason.PEER_LOST), (3, Reason.NIXL_BACKEND), (4, Reason.PEER_LOST)):
        ledger.end(room, Outcome.FAILED, reason)
    ledger.end(5, Outcome.ABORTED, Reason.CLIENT_ABORT)
    world.now += 3
    ledger.enter(7, DecodePhase.WAITING)
    rooms = as_json(status(speaker(), NOW, 60.0, {}, None, numbers(world)))["rooms"]
    assert rooms["started"] == 7
    assert rooms["ended"] == {"success": 1, "failed": 3, "aborted": 1}
    assert list(rooms["failed_by_reason"].items()) == [("peer_lost", 2), ("nixl_backend", 1)]
    assert rooms["aborted_by_reason"] == {"client_abort": 1}
    assert list(rooms["live"]) == list(DecodePhase)
    assert rooms["live"]["resolving"] == {"rooms": 1, "oldest_age_seconds": 5.0}
    assert rooms["live"]["waiting"] == {"rooms": 1, "oldest_age_seconds": 2.0}
    assert rooms["live"]["finishing"] == {"rooms": 0, "oldest_age_seconds": 0.0}
    assert (rooms["pages"], rooms["bytes"]) == (2, 8192)
    assert rooms["anomalies"] == {"duplicate": 1}


def test_status_counts_messages_reconnects_and_held_pages(world):
    said = status(speaker(), NOW, 60.0, {}, None, numbers(world))
    assert said["control_messages"] == {"status": {"handled": 3, "stale": 1}, "unknown": {"foreign": 2}}
    assert said["reconnects"] == {"healed": 1, "failed": 0}
    assert said["quarantine"] == {
        "rooms": 1,
        "pages": 4,
        "oldest_age_seconds": 2.0,
        "released": {"acknowledged": 0, "proven_dead": 0, "timeout": 0},
    }


def test_status_with_upstreams_classes_says_what_is_not_known():
    said = as_json(status(speaker(), NOW, 60.0, {}, None, None))
    names = ("rooms", "control_messages", "reconnects", "quarantine", "lanes", "stalls")
    assert [said[name] for name in names] == [None] * len(names)


def listed(world, text=""):
    query = room_query(text, world.ledger.role)
    found = find_rooms(world.ledger, query.wanted, query.limit + 1)
    return as_json(status_rooms.listing(speaker(), Moment(EPOCH, world.now), query, found))


def test_a_live_room_with_its_timeline(world):
    world.ledger.start(17, rid="a1", peer="10.0.0.7:8998")
    world.now += 1.5
    world.ledger.enter(17, DecodePhase.WAITING)
    world.ledger.progress(17, pages=3, bytes=12288)
    world.now += 0.5
    said = listed(world)
    assert said["schema"] == {"name": "sglang-pd/rooms", "version": 1}
    assert (said["filter"], said["limit"], said["truncated"]) == ({}, 100, False)
    assert said["rooms"] == [
        {
            "room": 17,
            "generation": 1,
            "state": "live",
            "rid": "a1",
            "peer": "10.0.0.7:8998",
            "incarnation": None,
            "phase": "waiting",
            "outcome": None,
            "reason": None,
            "pages": 3,
            "bytes": 12288,
            "started_at": EPOCH - 2,
            "ended_at": None,
            "seconds": 2.0,
            "timeline": [
                {"phase": "resolving", "at": EPOCH - 2, "seconds": 1.5},
                {"phase": "waiting", "at": EPOCH - 0.5, "seconds": 0.5},
            ],
        }
    ]


def test_an_ended_room_ages_no_more(world):
    world.ledger.start(17)
    world.now += 2
    world.ledger.end(17, Outcome.FAILED, Reason.PEER_LOST)
    world.now += 50
    [room] = listed(world)["rooms"]
    assert (room["state"], room["outcome"], room["reason"]) == ("ended", "failed", "peer_lost")
    assert (room["seconds"], room["started_at"], room["ended_at"]) == (2.0, EPOCH - 52, EPOCH - 50)


def test_rooms_by_state_and_no_more_than_the_limit(world):
    for room in range(6):
        world.ledger.start(room)
    for room in (0, 1):
        world.ledger.end(room, Outcome.SUCCESS)
    assert [room["room"] for room in listed(world, "state=ended")["rooms"]] == [1, 0]
    assert [room["room"] for room in listed(world, "state=live")["rooms"]] == [2, 3, 4, 5]
    said = listed(world, "limit=5")
    assert ([room["room"] for room in said["rooms"]], said["truncated"]) == ([2, 3, 4, 5, 1], True)
    assert listed(world, "limit=6")["truncated"] is False


def test_rooms_with_upstreams_classes_are_not_known():
    said = as_json(status_rooms.listing(speaker(), NOW, room_query("", Role.DECODE), None))
    assert (said["rooms"], said["truncated"]) == (None, False)


def decode(port, **more):
    info = SimpleNamespace(
        endpoint="10.0.0.1",
        dst_port=port,
        decode_tp_size=4,
        decode_tp_rank=1,
        dst_dcp_size=1,
        dst_dcp_rank=0,
        dst_kv_item_lens=[4096, 4096],
        dst_kv_mem_kinds=["VRAM", "VRAM"],
    )
    return Decode(**{"info": info, "protocol": 1, "link": WHOLE, "absent": False, "live": 0, **more})


def test_decodes_of_a_prefill():
    clock = SimpleNamespace(now=90.0)
    ledger = Ledger(Role.PREFILL, clock=lambda: clock.now)
    for room in (1, 2, 3):
        ledger.start(room, peer="10.0.0.1:4001")
    ledger.enter(2, PrefillPhase.WAITING)
    ledger.end(3, Outcome.FAILED, Reason.PEER_DISCONNECTED)
    ledger.start(4)
    broken = LinkState(epoch=2, whole=False, healing=True)
    decodes = {"b": decode(4002), "a": decode(4001, link=broken, absent=True, live=2)}
    refused = {"c": failure(Reason.PEER_INCOMPATIBLE, "bytes of a page differ")}
    records = find_rooms(ledger, RoomFilter())
    said = as_json(status_peers.of_prefill(speaker(Role.PREFILL), NOW, decodes, refused, records))
    assert said["schema"] == {"name": "sglang-pd/peers", "version": 1}
    one, other = said["peers"]
    assert one == {
        "agent": "a",
        "address": "10.0.0.1:4001",
        "protocol": 1,
        "absent": True,
        "layout": {
            "tp_size": 4,
            "tp_rank": 1,
            "dcp_size": 1,
            "dcp_rank": 0,
            "kv_buffers": 2,
            "page_bytes": 8192,
            "memory": ["VRAM"],
        },
        "connection": {"closed": 2, "whole": False, "healing": True},
        "live_rooms": 2,
        "recently_ended": {"success": 0, "failed": 1, "aborted": 0},
        "recent_failures_by_reason": {"peer_disconnected": 1},
        "last_heard_at": EPOCH - 10,
    }
    assert (other["agent"], other["live_rooms"], other["last_heard_at"]) == ("b", 0, None)
    text = "peer_incompatible: bytes of a page differ"
    assert said["refused"] == [{"agent": "c", "reason": "peer_incompatible", "text": text}]


def test_prefills_of_a_decode(world):
    world.ledger.start(1, peer="10.0.0.7:8998")
    world.now += 1
    world.ledger.enter(1, DecodePhase.TRANSFERRING)
    world.ledger.start(2, peer="10.0.0.8:8998")
    layout = dict.fromkeys(status_peers.LAYOUT, 1) | {"kv_cache_dtype": "bf16", "kv_layout": None}
    layouts = {"10.0.0.7:8998": SimpleNamespace(**layout, prefill_http_port=30000)}
    ranks = {"10.0.0.7:8998": [PrefillRank("10.0.0.7:5001", 0, absent=False)]}
    records = find_rooms(world.ledger, RoomFilter())
    known, unknown = as_json(status_peers.of_decode(speaker(), Moment(EPOCH, world.now), layouts, ranks, records))[
        "peers"
    ]
    assert known == {
        "address": "10.0.0.7:8998",
        "layout": layout,
        "ranks": [{"address": "10.0.0.7:5001", "pp_rank": 0, "absent": False}],
        "live_rooms": 1,
        "recently_ended": {"success": 0, "failed": 0, "aborted": 0},
        "recent_failures_by_reason": {},
        "last_heard_at": EPOCH,
    }
    assert (unknown["address"], unknown["layout"], unknown["ranks"]) == ("10.0.0.8:8998", None, [])
    assert (unknown["live_rooms"], unknown["last_heard_at"]) == (1, None)


def test_peers_with_upstreams_classes_are_not_known():
    assert as_json(status_peers.unknown(speaker(), NOW))["peers"] is None


def shape(value):
    """The fields at every depth, in order; of a list, those of its first entry. Names that are data count as one."""
    if isinstance(value, dict):
        return {name: "by name" if name in BY_NAME else shape(inner) for name, inner in value.items()}
    return [shape(one) for one in value[:1]] if isinstance(value, list) else None


BY_NAME = {
    "settings",
    "backends",
    "ucx",
    "told",
    "versions",
    "environment",
    "coordinates",
    "threads",
    "failed_by_reason",
    "aborted_by_reason",
    "anomalies",
    "control_messages",
    "recent_failures_by_reason",
    "filter",
    "refused",
}


def test_the_documented_examples_have_the_fields_of_the_answers(world):
    text = (Path(__file__).parents[7] / "docs/status.md").read_text()
    _, *examples = [json.loads(example) for example in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    world.ledger.start(17, peer="10.0.0.7:8998")
    world.ledger.enter(17, DecodePhase.WAITING)
    turns = Turns()
    turns.note(SimpleNamespace(), 99.0)
    records = find_rooms(world.ledger, RoomFilter())
    layouts = {"10.0.0.7:8998": SimpleNamespace(**dict.fromkeys(status_peers.LAYOUT, 1))}
    ranks = {"10.0.0.7:8998": [PrefillRank("10.0.0.7:5001", 0, absent=False)]}
    answers = [
        status(speaker(), NOW, 60.0, {}, 0.1, numbers(world), turns.entry(100.0)),
        listed(world),
        status_peers.of_prefill(speaker(Role.PREFILL), NOW, {"a": decode(4001)}, {}, []),
        status_peers.of_decode(speaker(), NOW, layouts, ranks, records),
    ]
    assert [json.dumps(shape(example)) for example in examples] == [json.dumps(shape(answer)) for answer in answers]
