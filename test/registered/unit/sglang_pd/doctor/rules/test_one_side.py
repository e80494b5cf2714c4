"""Requests that one side alone has; pages that there are none of; prefills that cannot be found; sides that differ."""

from dataclasses import replace

from harness.evidence import BOOTSTRAP, answer, case, ended, gateway, only, room, server, status
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.finding import Severity, Support
from sglang_pd.doctor.rules import layout, pool, registration, starved


def test_requests_that_reached_prefill_alone():
    prefill = server("prefill", rooms=[room(1, "bootstrapping", 4.0), room(2, "bootstrapping", 3.0)])
    found = only(starved.look(case(prefill, server("decode"))))
    assert (found.hop, found.rooms_total) == ("gateway → decode-0", 2)
    assert "decode-0 answers, is ready, and has no live room" in found.evidence_for
    assert "no gateway was looked at" in found.evidence_against[0]


def test_requests_that_reached_decode_alone():
    found = only(
        starved.look(case(server("prefill"), server("decode", rooms=[room(1, "waiting", 4.0, peer=BOOTSTRAP)])))
    )
    assert found.hop == "gateway → prefill-0"


def test_failures_on_prefill_only():
    prefill = server(
        "prefill", rooms=[ended(number, "metadata_timeout", phase="bootstrapping") for number in range(21)]
    )
    found = only(starved.look(case(prefill, server("decode"))))
    assert (found.severity, found.rooms_total) == (Severity.WARNING, 21)
    assert "unknown to every decode" in found.evidence_for[0]


def test_a_room_that_both_have_is_not_alone():
    prefill = server("prefill", rooms=[room(1, "bootstrapping", 4.0)])
    assert not list(starved.look(case(prefill, server("decode", rooms=[room(1, "allocating", 4.0)]))))


def test_a_decode_that_may_have_forgotten_it_is_asked_by_number():
    prefill = server("prefill", rooms=[room(1, "bootstrapping", 4.0)])
    busy = server("decode", ranks={"tp0": status("decode", [ended(number) for number in range(100, 200)])})
    assert not list(starved.look(case(prefill, busy)))
    path = "/pd/rooms?room=1"
    asked = replace(
        busy, replies={**busy.replies, path: Reply(path, 200, 0.0, answer("rooms", {"tp0": {"rooms": []}}))}
    )
    assert only(starved.look(case(prefill, asked))).rooms_total == 1


def test_a_decode_that_does_not_list_its_rooms_may_have_it():
    prefill = server("prefill", rooms=[room(1, "bootstrapping", 4.0)])
    assert not list(starved.look(case(prefill, server("decode", problems={"tp0": "no answer within 1 s"}))))


def test_a_decode_that_was_not_looked_at_may_have_it():
    decode, unseen = server("decode"), server("decode", url="http://10.0.0.9:1")
    prefill = server("prefill", rooms=[room(1, "bootstrapping", 4.0)])
    found = only(starved.look(case(prefill, decode, gateway((decode, True), (unseen, True)))))
    assert found.support is Support.POSSIBLE


FULL = {"num_used_tokens": 990, "max_total_num_tokens": 1000}


def test_a_full_pool():
    decode = server("decode", rooms=[room(1, "allocating", 12.0, peer=BOOTSTRAP)], loads=FULL)
    found = only(pool.look(case(server("prefill", rooms=[room(1, "bootstrapping", 12.0)]), decode)))
    assert (found.hop, found.severity, found.support) == ("decode-0: KV pool", Severity.FAULT, Support.SURE)
    assert "99% of its KV pool is taken (of 1000 tokens)" in found.evidence_for
    assert found.rooms[0].prefill == "bootstrapping for 12.0 s"


def test_a_pool_that_turns_over_is_a_warning():
    found = only(pool.look(case(server("decode", rooms=[room(1, "allocating", 2.0)], loads=FULL))))
    assert found.severity is Severity.WARNING


def test_pages_in_quarantine():
    rooms = [room(1, "allocating", 3.0)]
    ranks = {"tp0": status("decode", rooms, quarantine={"rooms": 1, "pages": 500})}
    found = only(pool.look(case(server("decode", rooms=rooms, ranks=ranks, loads=FULL))))
    assert any("500 pages are held in quarantine" in one for one in found.evidence_for)
    assert len(found.todo) == 2


def test_a_pool_with_room():
    assert not list(pool.look(case(server("decode", rooms=[room(1, "allocating", 0.2)], loads=FULL))))


def test_a_bootstrap_server_that_is_nowhere():
    decode = server("decode", rooms=[room(1, "resolving", 5.0, peer="10.0.0.7:1")])
    found = only(registration.look(case(server("prefill"), decode)))
    assert found.hop == "decode-0 → a prefill at 10.0.0.7:1 (bootstrap, 10.0.0.7:1)"
    assert "no prefill that was looked at has its bootstrap server at 10.0.0.7:1" in found.evidence_for


def test_a_bootstrap_server_that_is_dead():
    reason = "bootstrap server at 10.0.0.1:8998: no answer within 1.5 s"
    decode = server("decode", rooms=[ended(1, "bootstrap_unreachable", peer=BOOTSTRAP, phase="resolving")])
    found = only(registration.look(case(server("prefill", ready=[reason]), decode)))
    assert (found.severity, found.support) == (Severity.WARNING, Support.LIKELY)
    assert f"prefill-0 says: {reason}" in found.evidence_for


def test_a_registration_that_takes_a_moment():
    assert not list(registration.look(case(server("decode", rooms=[room(1, "resolving", 0.1, peer=BOOTSTRAP)]))))


def test_other_pages():
    prefill = server(
        "prefill", refused=[{"agent": "agent-of-decode", "reason": "peer_incompatible", "text": "page 1 is not 16"}]
    )
    decode = server("decode", rooms=[ended(1, "peer_incompatible", peer=BOOTSTRAP)], info={"page_size": 16})
    found = only(layout.look(case(prefill, decode)))
    assert (found.hop, found.support) == ("decode-0 → prefill-0 (registration)", Support.SURE)
    assert "prefill-0 has refused decode-0: page 1 is not 16" in found.evidence_for
    assert "page_size is 1 on prefill-0, 16 on decode-0" in found.evidence_for
    assert [one.room for one in found.rooms] == [1]


def test_other_index_keys_before_any_request():
    ranks = {"tp0": status("decode", environment={"SGLANG_DSV4_BF16_INDEX_K": "1"})}
    found = only(layout.look(case(server("prefill"), server("decode", ranks=ranks))))
    assert (found.severity, found.support) == (Severity.WARNING, Support.POSSIBLE)
    assert "SGLANG_DSV4_BF16_INDEX_K is False on prefill-0, True on decode-0" in found.evidence_for


def test_sides_that_agree():
    assert not list(layout.look(case(server("prefill"), server("decode"))))
