"""Targets that do not answer, ranks out of step, one bad peer, a gateway that errs, clocks, and when all is well."""

from dataclasses import replace

import pytest

from harness.evidence import (
    BOOTSTRAP,
    DECODE,
    case,
    ended,
    gateway,
    gpu,
    log,
    main,
    only,
    room,
    scheduler,
    server,
    silent,
    snapshot,
    status,
    stock,
)  # fmt: skip
from sglang_pd.doctor import report
from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import Reply, Server
from sglang_pd.doctor.finding import Severity, Support
from sglang_pd.doctor.paths import OVER, STATUS
from sglang_pd.doctor.rules import RULES, collective, failing, judge, reach, skew
from sglang_pd.doctor.rules import gateway as at_gateway


@pytest.mark.parametrize(
    ("target", "headline"),
    [
        (silent("decode", "connection refused: nothing listens there"), "is not there: nothing listens on its port"),
        (
            silent("decode", "connection refused: nothing listens there", expected_pid=5),
            "is gone: its process 5 does not run",
        ),
        (silent("decode"), "hangs: its port takes connections, and nobody answers"),
        (silent("decode", processes=[main(state="T")]), "is stopped: nobody answers on its port"),
        (silent("decode", "no connection within 4.9 s"), "cannot be reached"),
    ],
)
def test_targets_that_do_not_answer(target, headline):
    found = only(reach.look(case(server("prefill"), target)))
    assert found.hop == "gateway → decode-0"
    assert found.headline == f"decode-0 {headline}"


def test_a_unit_without_a_process():
    unit = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
    words = log("ERROR: out of memory")
    found = only(reach.look(case(Server("sglang-decode.service", None, None, unit=unit, log=words))))
    assert found.evidence_for == (
        "systemd: failed (failed), result exit-code", "its log ends with: ERROR: out of memory",
    )  # fmt: skip


def test_a_server_that_answers_is_reached():
    assert not list(reach.look(case(server("prefill"), server("decode", ready=["no"]))))


def ranks(first, second):
    return {"tp0": status("decode", loop_age_seconds=first), "tp1": status("decode", loop_age_seconds=second)}


def test_a_rank_that_does_not_take_part():
    decode = server(
        "decode", rooms=[room(1, "waiting", 9.0, peer=BOOTSTRAP)], ranks=ranks(8.0, 8.0),
        problems={"tp1": "no answer within 1 s"}, processes=[main(), scheduler(100), scheduler(101, "T")],
    )  # fmt: skip
    found = only(collective.look(case(server("prefill"), decode)))
    assert (found.hop, found.support) == ("decode-0: rank tp1", Support.SURE)
    assert "rank tp1: process 101 is in state T" in found.evidence_for
    assert "rank tp0 answers, and its loop came round 8.0 s ago" in " ".join(found.evidence_for)
    assert found.todo[0].startswith("kill -CONT 101")
    assert [one.room for one in found.rooms] == [1]


def test_ranks_that_spin_in_a_collective():
    decode = server("decode", ranks=ranks(50.0, 50.0), processes=[main(), scheduler(100), scheduler(101)])
    found = only(collective.look(case(decode, gpus=[gpu(100, 100.0, 430.0)])))
    assert "GPUs 0 are at full load (430 W): a collective spins" in found.evidence_for
    assert found.support is Support.LIKELY


def test_ranks_whose_stacks_are_in_a_collective():
    stack = 'Thread 100 (active): "MainThread"\n    broadcast (torch/distributed/distributed_c10d.py:2800)\n'
    decode = server("decode", ranks=ranks(50.0, 50.0), processes=[main(), scheduler(100, stack=stack)])
    assert "scheduler 100 is in broadcast" in only(collective.look(case(decode))).evidence_for


def test_idle_gpus_are_no_collective():
    decode = server("decode", ranks=ranks(50.0, 50.0), processes=[main(), scheduler(100), scheduler(101)])
    assert not list(collective.look(case(decode, gpus=[gpu(100, 0.0, 165.0)])))


def test_ranks_in_step():
    assert not list(collective.look(case(server("decode", ranks=ranks(0.2, 0.2)))))


def two_decodes(bad, good):
    """A prefill whose last rooms with either decode ended for these reasons."""
    second = "10.0.0.3:50003"
    rooms = [ended(10 + index, reason, 9.0 - index / 10, peer=second) for index, reason in enumerate(bad)]
    rooms += [ended(50 + index, reason, 9.0 - index / 10, peer=DECODE) for index, reason in enumerate(good)]
    other = {"tp0": status("decode", address=second, agent="second", environment={"UCX_TLS": "tcp"})}
    return case(server("prefill", rooms=rooms), server("decode"), server("decode", "decode-1", ranks=other))


def test_one_bad_peer():
    found = only(failing.one_bad_peer(two_decodes(["transfer_timeout"] * 4, ["delivered"] * 5)))
    assert found.hop == "prefill-0 → decode-1"
    assert found.evidence_for[0] == "with decode-1 4 of 4 failed lately: transfer_timeout 4"
    assert "UCX_TLS is tcp on decode-1, not set on the others" in found.evidence_for
    assert found.rooms_total == 4


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        (["peer_lost"] * 2, ["delivered"] * 5),
        (["peer_lost"] * 4, ["peer_lost"] * 4),
        (["peer_lost"] * 4, []),
        (["peer_lost"] * 4 + ["delivered"] * 3, ["delivered"] * 5),
    ],
    ids=["few", "both", "nothing to compare", "over"],
)
def test_no_bad_peer(bad, good):
    assert not list(failing.one_bad_peer(two_decodes(bad, good)))


def test_every_failure_is_told_and_those_that_are_over_are_notes():
    lasting, over = failing.look(two_decodes(["peer_lost"] * 2, ["transfer_timeout"] + ["delivered"] * 3))
    assert (lasting.severity, over.severity) == (Severity.WARNING, Severity.NOTE)
    assert over.evidence_against == ("3 rooms with it ended well since",)


def test_failures_that_another_finding_explains_are_not_told_twice():
    findings = judge(two_decodes(["transfer_timeout"] * 4, ["delivered"] * 5))
    assert [one.rule for one in findings] == ["one_bad_peer"]
    rules = [one.rule for one in judge(two_decodes(["transfer_timeout"] * 4, ["delivered"] * 11 + ["aux_missing"]))]
    assert rules == ["one_bad_peer", "failing"]


def test_failures_with_a_peer_that_was_started_anew_are_over():
    rooms = [ended(1, "peer_lost", 60.0, peer=BOOTSTRAP)]
    prefill = server("prefill", ranks={"tp0": status("prefill", started_at=1_800_000_000.0 - 30.0)})
    found = only(failing.look(case(prefill, server("decode", rooms=rooms))))
    assert found.severity is Severity.NOTE
    assert "prefill-0 was started anew since" in found.evidence_against


def test_a_gateway_that_takes_a_ready_server_for_unhealthy():
    prefill, decode = server("prefill"), server("decode")
    found = only(at_gateway.look(case(prefill, decode, gateway((prefill, True), (decode, False)))))
    assert found.hop == "gateway → decode-0"
    assert not list(at_gateway.look(case(prefill, decode, gateway((prefill, True), (decode, True)))))


def test_a_gateway_that_is_right_about_a_server_that_is_not_ready():
    prefill, decode = server("prefill"), server("decode", ready=["rank tp0: no"])
    assert not list(at_gateway.look(case(prefill, decode, gateway((prefill, True), (decode, False)))))


def test_a_gateway_that_does_not_know_a_server():
    prefill, decode = server("prefill"), server("decode")
    found = only(at_gateway.look(case(prefill, decode, gateway((prefill, True)))))
    assert found.headline == "gateway does not know decode-0"


def off(one, seconds):
    return replace(one, replies={path: replace(reply, skew=seconds) for path, reply in one.replies.items()}, later={})


def test_one_clock_that_is_wrong():
    found = only(skew.look(case(off(server("prefill"), 0.0), off(server("decode"), -61.0))))
    assert (found.hop, found.headline) == ("decode-0 ↔ the other machines", "the clock of decode-0 is 1m01s behind")


def test_the_doctors_own_clock():
    found = only(skew.look(case(off(server("prefill"), -61.0), off(server("decode"), -60.5))))
    assert found.headline == "the clock of here, where the doctor ran, is 1m01s ahead"


def test_clocks_that_agree():
    assert not list(skew.look(case(off(server("prefill"), 0.9), off(server("decode"), -1.2))))


def test_all_is_well():
    done = [ended(number, peer=BOOTSTRAP) for number in range(3)]
    found = judge(case(server("prefill", rooms=[room(9, "transferring", peer=DECODE)]), server("decode", rooms=done)))
    assert (found[0].rule, found[0].severity, found[0].support) == ("healthy", Severity.HEALTHY, Support.SURE)


def test_stock_servers_that_answer_are_likely_well():
    found = judge(case(stock("prefill"), stock("decode")))[0]
    assert (found.rule, found.support) == ("healthy", Support.LIKELY)
    assert "upstream's classes" in found.evidence_against[0]


@pytest.mark.parametrize(
    "servers",
    [
        (server("prefill"),),
        (server("prefill"), server("decode", ready=["rank tp0: the scheduler's loop has not come round for 21 s"])),
        (server("prefill"), server("decode", rooms=[room(1, "verifying", 60.0, peer=BOOTSTRAP)])),
        (),
    ],
    ids=["one side", "not ready", "an old room", "nothing"],
)
def test_too_little_to_call_it_healthy(servers):
    found = judge(case(*servers))[0]
    assert (found.rule, found.severity) == ("not_enough_evidence", Severity.UNKNOWN)
    assert found.evidence_against


@pytest.mark.parametrize("replies", [{}, {STATUS: Reply(STATUS, problem=OVER)}])
def test_a_server_that_was_not_asked_in_time_is_not_unreachable(replies):
    late = replace(server("decode"), replies=replies, later={})
    found = judge(case(server("prefill"), late))[0]
    assert (found.rule, found.severity) == ("not_enough_evidence", Severity.UNKNOWN)
    assert "decode-0 was not asked in time" in found.evidence_against


def test_a_server_that_wants_a_key():
    whole = server("decode")
    refused = replace(whole, replies={path: replace(reply, status=401, body={"error": "Unauthorized"})
                                      for path, reply in whole.replies.items()})  # fmt: skip
    found = judge(case(server("prefill"), refused))[0]
    assert "decode-0 wants an API key" in found.evidence_against


def test_a_note_comes_after_the_good_news():
    found = judge(two_decodes([], ["transfer_timeout"] + ["delivered"] * 3))
    assert [one.rule for one in found] == ["healthy", "failing"]


def test_the_most_severe_and_best_supported_comes_first():
    decode = server(
        "decode", rooms=[room(1, "allocating", 2.0, peer=BOOTSTRAP)], processes=[main(), scheduler(100, "T")]
    )
    found = judge(case(server("prefill"), decode))
    assert [one.rule for one in found][:2] == ["stopped_scheduler", "pool_exhausted"]


def test_rules_have_names_of_their_own():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.fault.endswith(".") for rule in RULES)


def test_no_rule_stumbles_over_nothing():
    assert judge(Case(snapshot(Server("x", None, "http://x:1"), Server("gateway", "gateway", None))))


@pytest.mark.parametrize(
    "body",
    [
        None, 3, [], "text", {"ranks": 3}, {"ranks": [3]}, {"ranks": [{"rank": "tp0", "said": []}]},
        {"ranks": [{"rank": "tp0", "pid": 1, "said": {"rooms": [3, {"room": "x"}], "peers": [], "speaks": True}}]},
        {"ranks": [{"rank": "tp0", "pid": 1, "said": {"threads": [], "peers": 7, "lanes": 4, "stalls": []}}]},
        {"loads": 3}, {"workers": [None]},
    ],
    ids=str,
)  # fmt: skip
def test_answers_of_something_else_stop_no_other_rule(body):
    """Whatever a port answers that is not a server of ours, there is a report."""
    whole = server("prefill", rooms=[room(1, "transferring", 60.0, peer=DECODE)])
    odd = replace(whole, replies={path: replace(reply, body=body) for path, reply in whole.replies.items()})
    every = case(odd, silent("decode"), replace(gateway(), replies=odd.replies))
    findings = judge(every)
    assert findings[0].rule == "unreachable"
    assert report.text(every, findings)
    assert report.to_data(every, findings)
