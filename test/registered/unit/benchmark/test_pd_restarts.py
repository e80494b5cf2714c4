"""The pure parts of the benchmark of restarts: sessions, what clients saw, failed rooms, resources, the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime

import pytest

from pd_restarts import document, rooms, store
from pd_restarts.bench_pd_restarts import arguments, shape_of, sizes_of
from pd_restarts.load import Shape, _Answer
from pd_restarts.measure import _grown, digest, told
from pd_restarts.records import Record, details, reason, reference, summarize, timeline
from pd_restarts.resources import growth
from pd_restarts.scenarios import Sizes, scenarios
from pd_restarts.sessions import Session, is_streamed
from pd_restarts.steps import Hang, InTurn, Measured, Restart, failed_after

EXPECTED = {(0, 0): (1, 2), (0, 1): (3, 4)}


def record(round_: int = 0, seconds: float = 1.0, ids: tuple[int, ...] | None = (1, 2), **more) -> Record:
    return Record(
        **{"session": 0, "round": round_, "began": 10.0, "seconds": seconds, "status": 200, "ids": ids} | more
    )


def failed(status: int | None = 503, said: str = "peer_lost: It is gone.", **more) -> Record:
    return record(status=status, ids=None, said=said, **more)


class TestSessions:
    def test_a_prompt_grows_and_its_beginning_stays(self):
        session = Session(3, rounds=3)
        seen = []
        for round_ in range(3):
            seen.append(json.dumps(session.ask(round_))[:-1])
            session.answered("yes")
        assert seen[1].startswith(seen[0])
        assert seen[2].startswith(seen[1])
        assert [one["role"] for one in session.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "tool",
            "assistant",
        ]
        assert all("tool_call_id" in one for one in session.messages if one["role"] == "tool"), "the gateway insists"

    def test_the_number_decides_the_texts(self):
        assert Session(3, 1).ask(0) == Session(3, 1).ask(0) != Session(4, 1).ask(0)

    def test_about_the_share_streams_and_always_the_same(self):
        streamed = [is_streamed(session, round_, 0.25) for session in range(100) for round_ in range(5)]
        assert streamed == [is_streamed(session, round_, 0.25) for session in range(100) for round_ in range(5)]
        assert 0.2 < sum(streamed) / len(streamed) < 0.3
        assert not any(is_streamed(session, 0, 0.0) for session in range(100))


class TestWhatClientsSaw:
    def test_nothing_wrong(self):
        summary = summarize([record(), record(1, ids=(3, 4))], EXPECTED, normal_s=2.0)
        assert summary.clean
        assert (summary.requests, summary.served, summary.bound) == (2, 2, 12.0)
        assert "none failed, stuck or unequal" in told(summary)

    @pytest.mark.parametrize(
        ("one", "counted"),
        [
            (failed(), {"failed": 1}),
            (failed(streamed=True), {"broken": 1}),
            (failed(streamed=True, said=""), {"broken": 1, "silent": 1}),
            (record(ids=None, status=None, stuck=True, seconds=120.0), {"stuck": 1}),
            (record(seconds=12.1), {"slow": 1}),
            (record(seconds=11.9), {}),
            (record(ids=(1, 3)), {"unequal": 1}),
        ],
    )
    def test_each_is_counted_once(self, one, counted):
        summary = summarize([record(), one], EXPECTED, normal_s=2.0)
        kinds = ("failed", "broken", "silent", "stuck", "slow", "unequal")
        assert {kind: n for kind in kinds if (n := getattr(summary, kind))} == counted
        assert summary.clean == (not counted.keys() - {"broken"})

    def test_failures_by_status_and_reason(self):
        lost = [failed(), failed(), failed(status=None, said="ServerDisconnectedError: Server disconnected")]
        summary = summarize(lost, EXPECTED, 1.0)
        assert summary.failures == {"503 peer_lost": 2, "no answer": 1}
        assert "3 failed (2x 503 peer_lost, 1x no answer)" in told(summary)

    @pytest.mark.parametrize(
        ("said", "named"),
        [
            ('{"message": "peer_lost: Its process is gone."}', "peer_lost"),
            ("Transport error: error sending request", ""),
            ("", ""),
        ],
    )
    def test_the_reason_is_the_one_the_server_names(self, said, named):
        assert reason(said) == named

    def test_a_reference_needs_every_answer_and_each_the_same(self):
        assert reference([record(), record(1, ids=(3, 4)), record()]) == EXPECTED
        with pytest.raises(ValueError, match="session 0 round 0 failed undisturbed: 503"):
            reference([failed()])
        with pytest.raises(ValueError, match="session 0 round 0 has two answers"):
            reference([record(), record(ids=(9,))])

    def test_a_request_that_was_never_run_undisturbed_is_no_other_one(self):
        with pytest.raises(KeyError):
            summarize([record(7)], EXPECTED, 1.0)

    def test_what_was_wrong_is_kept_request_by_request(self):
        rows = details([record(), failed(began=14.0), record(seconds=50.0)], EXPECTED, bound=12.0, zero=10.0)
        assert [(one["what"], one["at"]) for one in rows] == [("failed", 4.0), ("slow", 0.0)]
        assert rows[0]["said"] == "peer_lost: It is gone."

    def test_requests_by_the_time_of_their_end(self):
        steps = timeline([record(seconds=1.0), record(seconds=7.0), failed(seconds=8.0)], zero=10.0)
        assert steps == [
            {"at": 0.0, "served": 1, "not_served": 0, "slowest": 1.0},
            {"at": 5.0, "served": 1, "not_served": 1, "slowest": 8.0},
        ]

    def test_equal_answers_have_equal_digests(self):
        assert digest(EXPECTED) == digest(dict(reversed(EXPECTED.items())))
        assert digest(EXPECTED) != digest({**EXPECTED, (0, 1): (3, 5)})


class TestAnswers:
    def test_a_whole_one(self):
        answer = _Answer()
        choice = {"message": {"content": "ab"}, "response_token_ids": [97, 98]}
        answer.whole(200, json.dumps({"choices": [choice]}))
        assert (answer.status, answer.text, answer.ids) == (200, "ab", [97, 98])

    def test_a_refusal_without_words_is_one_still(self):
        answer = _Answer()
        answer.whole(503, "")
        assert (answer.ids, answer.said) == (None, "status 503")

    def test_an_error_event_ends_a_stream(self):
        answer = _Answer()
        answer._event({"choices": [{"delta": {"content": "a"}}]}, began=0.0)
        answer._event({"error": {"message": "peer_lost: It is gone."}}, began=0.0)
        assert answer.first_s is not None
        assert answer.ids is None
        assert "peer_lost" in answer.said


LINE = "[2026-01-01 00:00:0{}] PD room failed: role=prefill room=1 rid=- outcome=failed phase=waiting reason={} pages=0"


class TestFailedRooms:
    def test_reasons_in_a_log(self):
        log = "\n".join(
            [LINE.format(1, "peer_lost"), "something else", LINE.format(2, "peer_lost"), LINE.format(3, "send_timeout")]
        )
        assert rooms.logged(log) == {"peer_lost": 2, "send_timeout": 1}

    def test_reasons_in_metrics(self):
        ended = [
            ("success", "finishing", "delivered", 9),
            ("failed", "waiting", "peer_lost", 2),
            ("failed", "transferring", "peer_lost", 1),
            ("aborted", "waiting", "client_abort", 5),
        ]
        samples = [
            f'sglang:pd_rooms_ended_total{{role="decode",outcome="{outcome}",phase="{phase}",reason="{why}"}} {count}'
            for outcome, phase, why, count in ended
        ]
        upstream = 'sglang:num_transfer_failed_reqs_total{engine_type="decode"} 4.0'
        types = [f"# TYPE sglang:{name}_total counter" for name in ("pd_rooms_ended", "num_transfer_failed_reqs")]
        metrics = "\n".join([types[0], *samples, types[1], upstream])
        assert rooms.counted(metrics) == {"peer_lost": 3}
        assert rooms.upstream_counted(metrics) == {"num_transfer_failed_reqs": 4}

    def test_the_gateways_counters_are_summed_over_their_labels(self):
        metrics = "# TYPE smg_worker_retries_total counter\n" + "\n".join(
            f'smg_worker_retries_total{{worker_type="{role}"}} 3' for role in ("prefill", "decode")
        )
        assert rooms.gateway_counted(metrics + "\n# TYPE smg_other_total counter\nsmg_other_total 1\n") == {
            "smg_worker_retries_total": 6.0
        }

    def test_only_living_processes_are_compared(self):
        ended = {"name": "decode-0", "logged": {"peer_lost": 2}, "counted": None}
        same = {"name": "decode-0", "logged": {"peer_lost": 1}, "counted": {"peer_lost": 1}}
        other = {"name": "prefill-0", "logged": {}, "counted": {"peer_lost": 1}}
        assert rooms.disagreements([ended, same]) == []
        assert rooms.disagreements([other]) == ["prefill-0: the log has {}, the metrics {'peer_lost': 1}"]
        assert rooms.total([ended, same], "logged") == {"peer_lost": 3}

    def test_when_rooms_failed(self):
        wall = datetime(2026, 1, 1, 0, 0, 2).timestamp() + 0.5
        log = "\n".join(LINE.format(second, "peer_lost") for second in (1, 2, 4))
        assert failed_after(log, wall) == [0.0, 1.5]


HELD = {"descriptors": 60, "threads": 40, "rss_mib": 900, "agents": 2, "rooms": 0}


class TestResources:
    def test_flat(self):
        assert growth(HELD, {**HELD, "rss_mib": 960, "descriptors": 50}) == {}

    def test_grown(self):
        after = {**HELD, "descriptors": 61, "rss_mib": 1000, "agents": 3}
        assert growth(HELD, after) == {"descriptors": 1, "rss_mib": 100, "agents": 1}

    def test_what_nobody_counts_does_not_grow(self):
        assert growth({**HELD, "agents": None}, {**HELD, "agents": None}) == {}

    def test_the_first_and_the_last_of_each_server(self):
        rows = [{"after": after, "server": name, **HELD, "threads": 40 + after} for after in (0, 10) for name in "ab"]
        assert _grown(rows) == {"grown": {"a": {"threads": 10}, "b": {"threads": 10}}}
        assert _grown(None) == {}


class TestScenarios:
    def test_what_the_issue_asks_for_is_there(self):
        found = scenarios(Sizes())
        assert found["hang-decode"].steps == (Hang("decode", 60.0),)
        assert found["hang-decode-watched"].up_flags == ("--hung-after", "5")
        assert found["kill-pair"].steps == (Restart(("prefill", "decode")),)
        assert found["term-prefill"].steps == (Restart(("prefill",), kill=False),)
        assert found["decodes-in-turn"].steps == (InTurn(("decode-0", "decode-1"), 10),)
        assert found["many-restarts"].steps == (Measured(Restart(("decode-1",)), 50),)
        assert found["kill-decode-unseen"].env == {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "300"}

    def test_flags(self):
        options = arguments(["--scenario", "kill-decode", "--quick", "--hang-seconds", "7", "--sessions", "4"])
        assert options.systems == ["ours", "upstream"]
        assert sizes_of(options) == Sizes(hang=7.0, restarts=4, many=5)
        assert shape_of(options) == Shape(pool=24, at_a_time=4)

    def test_one_that_there_is_not_is_refused(self, capsys):
        with pytest.raises(SystemExit):
            arguments(["--scenario", "earthquake"])
        assert "invalid choice: 'earthquake'" in capsys.readouterr().err


def result(**more) -> dict:
    summary = asdict(summarize([record(), failed()], EXPECTED, 2.0))
    return {
        "summary": summary,
        "after": asdict(summarize([record()], EXPECTED, 2.0)),
        "servers": [],
        "failed_rooms": {"peer_lost": 2},
        "upstream_counters": {"num_transfer_failed_reqs": 7},
        "disagreements": [],
        "gateway": {"smg_worker_retries_total": 6.0},
        "reference": "abc",
        **more,
    }


class TestResultAndPage:
    def add(self, results, name, system, **more):
        store.add(results, scenarios(Sizes())[name], system, result(**more), Shape(), Sizes())

    def test_a_result_is_added_to_what_is_there(self, tmp_path):
        path = tmp_path / "r.json"
        results = store.load(path)
        self.add(results, "kill-decode", "ours")
        store.save(results, path)
        again = store.load(path)
        self.add(again, "kill-decode", "upstream")
        self.add(again, "kill-decode", "ours", reference="def")
        assert list(again["scenarios"]["kill-decode"]["systems"]) == ["ours", "upstream"]
        assert again["scenarios"]["kill-decode"]["systems"]["ours"]["reference"] == "def"

    def test_scenarios_stand_in_their_order_and_each_result_keeps_its_title(self):
        results = {"scenarios": {}}
        self.add(results, "decodes-in-turn", "ours")
        self.add(results, "kill-decode", "ours")
        assert list(results["scenarios"]) == ["kill-decode", "decodes-in-turn"]
        few = Sizes(restarts=4)
        store.add(results, scenarios(few)["decodes-in-turn"], "upstream", result(), Shape(), few)
        page = document.page(results)
        assert "10 restarts of decodes in a row" in page
        assert "4 restarts of decodes in a row" in page

    def test_the_page(self):
        results = {"scenarios": {}}
        self.add(results, "kill-decode", "upstream")
        self.add(results, "kill-decode", "ours")
        self.add(results, "dead-scheduler", "ours", dead_scheduler={"not ready": 1.04, "server ended": 3.0})
        why = "peer_incompatible: "
        answer = {
            "status": 500,
            "seconds": 0.2,
            "reason": "peer_incompatible",
            "said": json.dumps({"message": f"{why}Handshake failed: {why}Page size 1."}),
        }
        self.add(results, "other-pages", "ours", joined=[{"decode": answer, "prefill": answer}])
        held = {"after": 50, "server": "prefill-0", **HELD, "agents": None}
        self.add(results, "many-restarts", "ours", resources=[held])
        page = document.page(results)
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
        ]
        kill = "kill -9 and restart of one decode"
        assert [kill, "ours", "2", "1", "0", "0", "0", "1.0 / 12.0", "1/1"] in rows
        assert rows.index([kill, "ours", "2 peer_lost", "agree", "3"]) < rows.index(
            [kill, "upstream", "7 num_transfer_failed_reqs", "counters only", "3"]
        )
        assert ["ours", "1.0", "-", "-", "3.0"] in rows
        assert ["ours", "prefill-0", "50", "60", "40", "-", "0", "900"] in rows
        assert "decode answers 500 after 0.2 s: `peer_incompatible: Page size 1.`" in page
        assert "The undisturbed runs of all 5 clusters above had the same answers" in page

    def test_different_answers_and_counts_are_told(self):
        results = {"scenarios": {}}
        self.add(results, "kill-decode", "ours", disagreements=["decode-0: the log has {}, the metrics {'x': 1}"])
        self.add(results, "kill-decode", "upstream", reference="other")
        page = document.page(results)
        assert "decode-0: the log has {}" in page
        assert "had 2 different sets of answers" in page

    def test_a_page_of_nothing(self):
        assert "Nothing was measured" in document.page({"scenarios": {}})
