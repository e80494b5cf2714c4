"""Rooms that are pinned between two servers."""

from harness.evidence import (
    AT,
    BOOTSTRAP,
    DECODE,
    case,
    ended,
    gpu,
    log,
    main,
    only,
    peer,
    room,
    scheduler,
    server,
    status,
    stock,
)  # fmt: skip
from sglang_pd.doctor.finding import Severity, Support
from sglang_pd.doctor.rules import watchdog
from sglang_pd.doctor.rules.stalled import look

PINNED = [room(1, "transferring", 30.0, peer=DECODE), room(2, "waiting", 29.0, peer=DECODE)]
OTHER_SIDE = [room(1, "waiting", 30.0, peer=BOOTSTRAP), room(2, "waiting", 29.0, peer=BOOTSTRAP)]


def test_pinned_rooms_while_the_gpus_idle():
    prefill = server("prefill", rooms=PINNED, processes=[main(), scheduler(10)])
    decode = server("decode", rooms=OTHER_SIDE, processes=[main(), scheduler(20)])
    found = only(look(case(prefill, decode, gpus=[gpu(20, 0.0, 165.0)])))
    assert found.hop == "prefill-0 → decode-0 (KV transfer)"
    assert (found.rooms_total, found.since, found.support) == (2, AT - 30.0, Support.LIKELY)
    assert found.rooms[0].prefill == "transferring for 30.0 s"
    assert found.rooms[0].decode == "waiting for 30.0 s"
    assert "the GPUs of decode-0 idle (165 W)" in found.evidence_for


def test_a_second_suffices_where_one_side_is_stopped():
    prefill = server("prefill", rooms=[room(1, "transferring", 1.5, peer=DECODE)])
    decode = server("decode", problems={"tp0": "no answer within 1 s"}, processes=[main(), scheduler(20, "T")])
    found = only(look(case(prefill, decode)))
    assert found.support is Support.SURE
    assert "scheduler 20 of decode-0 stands still" in found.headline
    assert found.todo[0].startswith("kill -CONT 20")


def test_rooms_that_ended_for_the_silence_of_one_that_is_stopped():
    prefill = server(
        "prefill", rooms=[ended(1, "peer_silent", 2.0, peer=DECODE), ended(2, "peer_silent", 999.0, peer=DECODE)]
    )
    decode = server(
        "decode", problems={"tp0": "no answer within 1 s"}, processes=[main(), scheduler(20, "T")], ports=[40002]
    )
    found = only(look(case(prefill, decode)))
    assert [one.room for one in found.rooms] == [1]
    assert "failed since: peer_silent 1" in found.evidence_for


def test_a_room_of_a_moment_is_not_pinned():
    prefill = server("prefill", rooms=[room(1, "transferring", 2.0, peer=DECODE)])
    assert not list(look(case(prefill, server("decode"))))


def test_a_room_that_moves_is_not_pinned():
    later = [{**PINNED[0], "bytes": 5000}]
    assert not list(look(case(server("prefill", rooms=PINNED[:1], later=later), server("decode"))))


def test_a_prefill_that_computes_lets_rooms_wait():
    prefill = server("prefill", rooms=[PINNED[1]], processes=[main(), scheduler(cores=1.0)])
    assert not list(look(case(prefill, server("decode", rooms=[]))))


def test_others_between_the_two_speak_against_it():
    decode = server("decode", rooms=[*OTHER_SIDE, ended(9, peer=BOOTSTRAP, ago=3.0)])
    found = only(look(case(server("prefill", rooms=[*PINNED, ended(9, peer=DECODE, ago=3.0)]), decode)))
    assert "1 other room between the two ended well since" in found.evidence_against


def test_a_connection_that_does_not_heal():
    broken = peer(live_rooms=1, connection={"closed": 1, "whole": False, "healing": True})
    prefill = server("prefill", rooms=[room(1, "transferring", 2.0, peer=DECODE)], peers=[broken])
    found = only(look(case(prefill, server("decode"))))
    assert f"NIXL's connection to {DECODE} broke and has not healed" in found.evidence_for


def test_what_the_watchdog_saw():
    stalls = {
        "open": [{"phase": "transferring", "cause": "peer_silent", "text": "nothing arrives", "rooms": 1, "seconds": 9}]
    }
    rooms = [room(1, "transferring", 9.0, peer=DECODE)]
    prefill = server("prefill", rooms=rooms, ranks={"tp0": status("prefill", rooms, stalls=stalls)})
    found = only(look(case(prefill, server("decode"))))
    assert any("the watchdog of prefill-0: nothing arrives (peer_silent" in one for one in found.evidence_for)


def test_upstreams_in_flight_queue_that_does_not_move():
    last = "[2027-01-15 07:59:00] Decode batch, #running-req: 1"
    prefill = stock("prefill", loads={"disaggregation": {"prefill_inflight_queue_reqs": 1}})
    decode = stock("decode", loads={"disaggregation": {"decode_transfer_queue_reqs": 0}}, log=log(last_batch=last))
    found = only(look(case(prefill, decode)))
    assert found.headline == "1 request pinned in the in-flight queue of prefill-0"
    assert "no batch was logged for 1m00s" in found.evidence_for
    assert "do not say which requests" in found.evidence_against[0]


def test_upstreams_in_flight_queue_of_a_prefill_that_computes():
    queue = {"disaggregation": {"prefill_inflight_queue_reqs": 1}}
    prefill = stock("prefill", loads=queue, loads_later={"total_prefill_busy_us": 9, "num_used_tokens": 10})
    assert not list(look(case(prefill, stock("decode"))))


def stall(cause, **more):
    return {
        "phase": "waiting", "peer": BOOTSTRAP, "cause": cause, "text": "nothing comes", "rooms": 1,
        "since_at": AT - 31.0, "seconds": 31.0,
    } | more  # fmt: skip


def watched(*stalls):
    rooms = [room(1, "waiting", 31.0, peer=BOOTSTRAP), room(2, "allocating", 31.0)]
    told = {"open": list(stalls), "last_report": {"at": AT, "file": "/stalls/1.json"}}
    return case(server("prefill"), server("decode", rooms=rooms, ranks={"tp0": status("decode", rooms, stalls=told)}))


def test_a_stall_that_only_a_watchdog_sees():
    found = only(watchdog.look(watched(stall("not_scheduled"))))
    assert (found.hop, found.severity, found.since) == ("decode-0 (waiting) ↔ prefill-0", Severity.FAULT, AT - 31.0)
    assert found.evidence_for == (
        "not_scheduled in waiting: 1 rooms, for 31.0 s", "its report, with stacks: /stalls/1.json",
    )  # fmt: skip
    assert [one.room for one in found.rooms] == [1]


def test_a_watchdog_that_waits_for_the_other_side_accuses_it_only():
    found = only(watchdog.look(watched(stall("waiting_for_peer"))))
    assert (found.severity, found.support) == (Severity.WARNING, Support.POSSIBLE)
    assert found.todo == ("look at prefill-0 first",)


def test_a_stalled_loop_holds_up_all_rooms():
    found = only(watchdog.look(watched(stall("loop_wedged", phase="loop", peer=None))))
    assert (found.hop, found.rooms_total) == ("decode-0 (loop)", 2)
