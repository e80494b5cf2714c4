"""The pure parts of the benchmark of faults on real servers: what is read off an answer, and the table."""

import pytest

from harness.fleet import Answer
from pd_faults.bench_pd_faults import arguments, timeouts
from pd_faults.outcome import table
from pd_faults.scenarios import Loss, Seen

SEEN = {"status": 200, "seconds": 0.1, "reason": ""}


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (503, '{"message": "transfer_timeout: Writing started, but was not done in time."}', "transfer_timeout"),
        (500, '{"message": "KVTransferError(bootstrap_room=1): Decode transfer failed"}', ""),
        (200, '{"text": "x_y: Z"}', ""),
        (None, "ConnectionResetError: [Errno 104]", ""),
    ],
)
def test_the_reason_is_the_one_a_failed_answer_names(status, text, reason):
    assert Seen.of(Answer(status, text, 1.23456, 0.0)) == Seen(status, 1.235, reason)


def test_failed_requests_count_with_their_time():
    answers = [Answer(200, "", 1.0, 0.0), Answer(500, "", 30.0, 0.0), Answer(200, "", 2.0, 0.0)]
    assert Loss.of(answers) == Loss(served=2, asked=3, median=2.0, longest=30.0)


def test_every_deadline_of_both_sides_is_the_same():
    chosen = timeouts()
    assert set(chosen.values()) == {"30"}
    assert chosen.keys() >= {
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
        "SGLANG_PD_TRANSFER_TIMEOUT",
        "SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT",
        "SGLANG_PD_DECODE_WAITING_TIMEOUT",
    }
    assert "SGLANG_PD_QUARANTINE_TIMEOUT" not in chosen, "no deadline of a request"


def test_a_row_for_each_figure_and_a_column_for_each_side():
    loss = {"served": 20, "asked": 20, "median": 0.2, "longest": 0.5}
    hung = {
        "before": loss,
        "during": {**loss, "median": 0.22},
        "rooms_ended_s": [29.5, 30.1],
        "rooms_not_ended": 1,
        "reasons": ["transfer_timeout"],
        "next_of_the_hung_one": {"status": 503, "seconds": 30.0, "reason": "peer_lost"},
    }
    idle = [{"prefill": 0.01, "decode": 0.03}, {"prefill": 0.03, "decode": 0.03}]
    text = table({"hung-decode": {"ours": hung, "upstream": hung}, "idle": {"ours": idle, "upstream": idle}})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[0] == ["Fault", "Measured", "ours", "upstream"]
    cells = {row[1]: row[2:] for row in rows[2:]}
    assert cells["median, during / before"] == ["1.10"] * 2
    assert cells["the hung one's rooms end on prefill"] == ["2 of 3 after 29.5 to 30.1 s: transfer_timeout"] * 2
    assert cells["its next request, once it goes on"] == ["503 after 30.00 s, peer_lost"] * 2
    assert cells["by both"] == ["0.0500 (0.0400 to 0.0600)"] * 2


def test_a_fault_that_never_let_go_is_said_to():
    hung = {
        **{name: {"served": 0, "asked": 1, "median": 30.0, "longest": 30.0} for name in ("before", "during")},
        "rooms_ended_s": [],
        "rooms_not_ended": 8,
        "reasons": [],
        "next_of_the_hung_one": SEEN,
    }
    assert "| 0 of 8 " in table({"hung-decode": {"upstream": hung}})


def test_a_fault_that_there_is_not_is_refused(capsys):
    with pytest.raises(SystemExit):
        arguments(["--only", "earthquake"])
    assert "invalid choice: 'earthquake'" in capsys.readouterr().err
