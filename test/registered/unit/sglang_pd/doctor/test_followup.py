"""Which rooms the other side is asked for by number."""

from dataclasses import replace

from harness.evidence import ended, room, server
from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.followup import MOST, ask, unmatched
from sglang_pd.doctor.paths import LIVE
from sglang_pd.doctor.tasks import Deadline


def test_old_rooms_and_failed_ones_that_the_other_side_does_not_list():
    rooms = [room(1, "bootstrapping", 9.0), room(2, "waiting", 30.0), room(3, "waiting", 0.2), room(4, "waiting", 8.0)]
    prefill = server("prefill", rooms=[*rooms, ended(5, "metadata_timeout"), ended(6)])
    assert unmatched(prefill, [server("decode", rooms=[ended(4)])]) == [2, 1, 5]


def test_no_more_than_a_few():
    prefill = server("prefill", rooms=[room(number, "waiting", 5.0) for number in range(100)])
    assert len(unmatched(prefill, [server("decode")])) == MOST


def test_answers_of_another_shape_are_passed_over():
    decode = server("decode")
    for body in (None, [], {"ranks": 3}, {"ranks": [3]}, {"ranks": [{"said": {"rooms": [3, {"room": "x"}]}}]}):
        odd = replace(decode, replies={LIVE: Reply(LIVE, 200, 0.0, body)})
        assert unmatched(odd, []) == []


def test_a_side_that_does_not_answer_then_costs_the_deadline_only():
    prefill = server("prefill", rooms=[room(1, "waiting", 5.0)])
    asked = ask([prefill, server("decode", url="http://192.0.2.77:1")], {}, Deadline(0.2))
    assert asked[0] == prefill
    assert asked[1].replies["/pd/rooms?room=1"].status is None
