"""Schedulers that are gone, stand still, or have lost a thread."""

from dataclasses import replace

from harness.evidence import AT, DECODE, case, ended, log, main, only, room, scheduler, server, silent, status, stock
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.finding import Severity, Support
from sglang_pd.doctor.paths import INFO
from sglang_pd.doctor.rules.scheduler import dead, stopped, threads

GONE = {"tp0": "its process 100 is gone"}


def test_a_scheduler_that_died_behind_its_port():
    prefill = server("prefill", problems=GONE, processes=[main()])
    decode = server(
        "decode", rooms=[room(7, "waiting", peer="10.0.0.1:8998"), ended(8, "peer_lost", peer="10.0.0.1:8998")]
    )
    found = only(dead(case(prefill, decode)))
    assert (found.hop, found.severity, found.support) == ("prefill-0: HTTP → scheduler", Severity.FAULT, Support.SURE)
    assert found.evidence_for[:2] == (
        "rank tp0: its process 100 is gone", "its main process 99 lives, and has no scheduler beside it",
    )  # fmt: skip
    assert "its port still answers (/ready 200)" in found.evidence_for
    assert {one.room for one in found.rooms} == {7, 8}


def test_when_it_died_stands_in_the_log():
    line = "[2027-01-15 08:00:00] Subprocess scheduler_0 (pid=100) crashed with exit code -9. Triggering SIGQUIT"
    found = only(dead(case(silent("prefill", processes=[main()], log=log(line)))))
    assert found.since == AT
    assert "crashed with exit code -9" in " ".join(found.evidence_for)
    assert "its port still takes connections, and does not answer" in found.evidence_for


def test_rooms_that_failed_before_it_died_are_not_its():
    line = "[2027-01-15 07:59:50] Subprocess scheduler_0 (pid=100) crashed with exit code -9. Triggering SIGQUIT"
    rooms = [ended(1, "peer_lost", 9.0, peer="10.0.0.1:8998"), ended(2, "peer_silent", 30.0, peer="10.0.0.1:8998")]
    prefill = server("prefill", problems=GONE, processes=[main()], log=log(line))
    assert [one.room for one in only(dead(case(prefill, server("decode", rooms=rooms)))).rooms] == [1]


def test_a_crash_of_an_earlier_life_is_no_news():
    line = "[2027-01-15 07:00:00] Subprocess scheduler_0 (pid=55) crashed with exit code -9. Triggering SIGQUIT"
    assert not list(dead(case(server("prefill", processes=[main(), scheduler()], log=log(line)))))


def test_a_zombie_is_dead():
    found = only(dead(case(server("decode", processes=[main(), scheduler(state="Z")]))))
    assert "scheduler 100 is a zombie" in found.evidence_for[0]


def test_a_server_that_is_just_starting_has_no_scheduler_yet():
    assert not list(dead(case(silent("decode", "connection refused", processes=[main(started_ago=5.0)]))))


def test_a_scheduler_that_is_stopped():
    decode = server("decode", problems={"tp0": "no answer within 1 s"}, processes=[main(), scheduler(state="T")])
    found = only(stopped(case(server("prefill"), decode)))
    assert found.headline == "scheduler 100 of decode-0 is stopped by a signal"
    assert found.support is Support.SURE
    assert found.todo[0].startswith("kill -CONT 100")


def test_a_loop_that_does_not_come_round_and_where_it_is():
    stack = 'Process 100: sglang\nThread 100 (active): "MainThread"\n    recv (nixl.py:10)\n    event_loop (s.py:20)\n'
    ranks = {"tp0": status("decode", loop_age_seconds=95.0)}
    found = only(stopped(case(server("decode", ranks=ranks, processes=[main(), scheduler(stack=stack)]))))
    assert "rank tp0: its loop came round 1m35s ago" in found.evidence_for
    assert "its main thread is in recv (nixl.py:10) < event_loop (s.py:20)" in found.evidence_for


def test_a_busy_scheduler_may_be_at_a_long_batch():
    ranks = {"tp0": status("prefill", loop_age_seconds=25.0)}
    found = only(stopped(case(server("prefill", ranks=ranks, processes=[main(), scheduler(cores=0.98)]))))
    assert "a long batch looks like this too" in found.evidence_against[0]


def test_stock_upstream_whose_scheduler_does_not_answer():
    whole = stock("decode")
    mute = replace(whole, replies={**whole.replies, INFO: Reply(INFO, None, 4.9, None, "connected, but no answer")})
    found = only(stopped(case(mute)))
    assert "passes through the scheduler" in found.evidence_for[0]
    assert found.support is Support.LIKELY


def test_schedulers_that_work():
    every = case(server("prefill", processes=[main(), scheduler()]), server("decode"), stock("decode"))
    assert not list(dead(every))
    assert not list(stopped(every))
    assert not list(threads(every))


def test_a_control_thread_that_died():
    down = {"decode-control": {"up": False, "restarts": 3, "last_error": "ValueError: no"}}
    decode = server("decode", ranks={"tp0": status("decode", threads=down)}, rooms=[room(3, "waiting", peer=DECODE)])
    found = only(threads(case(decode)))
    assert found.hop == "decode-0: control thread of rank tp0"
    assert found.evidence_for == ("decode-control is down: ValueError: no",)
    assert [one.room for one in found.rooms] == [3]
