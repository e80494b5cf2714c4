"""What one side still holds of a process that is gone."""

from harness.evidence import AT, case, gateway, log, only, peer, room, server, stock
from sglang_pd.doctor.finding import Severity, Support
from sglang_pd.doctor.rules.stale import look

OLD = "10.0.0.2:39999"


def test_a_registration_that_no_decode_calls_its_own_and_rooms_that_wait_for_it():
    decode = server("decode")
    pinned = [room(5, "transferring", 40.0, peer=OLD)]
    prefill = server("prefill", rooms=pinned, peers=[peer(), peer("agent-of-the-dead", OLD, absent=True, live_rooms=1)])
    found = only(look(case(prefill, decode, gateway((decode, True)))))
    assert (found.severity, found.support) == (Severity.FAULT, Support.SURE)
    assert found.hop == f"prefill-0 → a decode that is gone ({OLD})"
    assert [one.room for one in found.rooms] == [5]


def test_one_that_nobody_waits_for_is_a_note():
    prefill = server("prefill", peers=[peer("agent-of-the-dead", OLD, absent=True)])
    found = only(look(case(prefill, server("decode"))))
    assert found.severity is Severity.NOTE
    assert "no live room waits for it" in found.evidence_against


def test_a_decode_that_was_not_looked_at_speaks_against_it():
    prefill = server("prefill", rooms=[room(5, "transferring", peer=OLD)], peers=[peer("unseen", OLD)])
    decode, unseen = server("decode"), server("decode", url="http://10.0.0.9:32000")
    found = only(look(case(prefill, decode, gateway((decode, True), (unseen, True)))))
    assert found.support is Support.POSSIBLE
    assert "the gateway also knows http://10.0.0.9:32000, not looked at" in found.evidence_against


def test_a_decode_that_says_nothing_of_itself_may_be_the_one():
    decode = server("decode", problems={"tp0": "no answer within 1 s"})
    assert not list(look(case(server("prefill", peers=[peer("whose", OLD)]), decode)))


def test_registrations_that_fit():
    known = {"address": "10.0.0.1:8998", "ranks": [{"address": "10.0.0.1:40001", "pp_rank": 0, "absent": False}]}
    assert not list(look(case(server("prefill", peers=[peer()]), server("decode", peers=[known]))))


def test_a_decode_that_is_registered_with_a_prefill_that_is_gone():
    known = {"address": "10.0.0.1:8998", "ranks": [{"address": "10.0.0.1:11111", "pp_rank": 0, "absent": False}]}
    decode = server("decode", rooms=[room(4, "waiting", 20.0, peer="10.0.0.1:8998")], peers=[known])
    found = only(look(case(server("prefill"), decode)))
    assert found.hop == "decode-0 → prefill-0 (registration)"
    assert "10.0.0.1:11111 is no rank of prefill-0 as it runs now" in found.evidence_for
    assert found.severity is Severity.FAULT


FAILED = (
    "[2027-01-15 07:58:20] Prefill transfer failed for request rank=0 req.rid='a1' req.bootstrap_room=17 with "
    "exception KVTransferError(bootstrap_room=17): NIXL_ERR_REMOTE_DISCONNECT"
)


def incident(**more):
    """Prefill is up for 17 h, decode for 100 s; 1 request is pinned; prefill's log has a failure, decode's none."""
    pinned = {"disaggregation": {"prefill_inflight_queue_reqs": 1}}
    prefill = stock("prefill", loads=pinned, started_ago=17 * 3600.0, log=log(FAILED))
    return case(prefill, stock("decode", started_ago=100.0, log=log(starts=4), **more))


def test_the_incident():
    found = only(look(incident()))
    assert (found.severity, found.support, found.since) == (Severity.FAULT, Support.LIKELY, AT - 100.0)
    assert found.headline == "prefill-0 still holds the state of an earlier decode-0"
    text = " | ".join(found.evidence_for)
    assert "prefill-0 has been up for 17h00m, decode-0 for 1m40s: it was restarted alone" in text
    assert "the log of decode-0 has 4 starts" in text
    assert "prefill-0 has 1 in its in-flight queue, and computes nothing" in text
    assert "1 failed transfer, the last 1m40s ago, that of decode-0 0" in text
    assert [(one.room, one.rid, one.prefill) for one in found.rooms] == [(17, "a1", "Prefill transfer failed")]


def test_failures_of_which_nothing_is_left_are_a_warning():
    prefill = stock("prefill", started_ago=17 * 3600.0, log=log(FAILED))
    found = only(look(case(prefill, stock("decode", started_ago=100.0, log=log(starts=4)))))
    assert (found.severity, found.support) == (Severity.WARNING, Support.LIKELY)
    assert "nothing is seen to be pinned on prefill-0 now" in found.evidence_against


def test_a_busy_prefill_has_requests_in_every_queue():
    pinned = {"disaggregation": {"prefill_inflight_queue_reqs": 5}}
    prefill = stock("prefill", loads=pinned, loads_later={"num_used_tokens": 900}, started_ago=17 * 3600.0)
    assert not list(look(case(prefill, stock("decode", started_ago=100.0))))


def test_a_failure_long_after_the_restart_is_not_blamed_on_it():
    prefill = stock("prefill", started_ago=90_000.0, log=log(FAILED.replace("07:58:20", "07:10:00")))
    assert not list(look(case(prefill, stock("decode", started_ago=50_000.0))))


def test_ages_alone_are_no_fault():
    assert not list(look(case(stock("prefill", started_ago=17 * 3600.0), stock("decode", started_ago=100.0))))


def test_the_same_with_our_classes_is_no_such_fault():
    prefill = server(
        "prefill", peers=[peer()], log=log(FAILED), loads={"disaggregation": {"prefill_inflight_queue_reqs": 1}}
    )
    assert not list(look(case(prefill, server("decode"))))
