import pytest

from sglang.srt.disaggregation.reliable.phases import PHASES, Role
from sglang.srt.disaggregation.reliable.reasons import DEADLINE_REASON, Outcome, Reason


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_says_what_it_means(reason):
    assert reason.sentence.endswith(".")
    assert Reason(reason.value) is reason
    assert reason.value == reason.name.lower()


def test_only_one_reason_is_a_success():
    assert [reason for reason in Reason if reason.outcome is Outcome.SUCCESS] == [Reason.DELIVERED]


def test_every_failure_is_answered_with_a_server_error():
    assert {reason.http_status for reason in Reason if reason.outcome is Outcome.FAILED} == {500, 503}
    assert [reason for reason in Reason if reason.http_status == 400] == [Reason.REQUEST_INVALID]


def test_the_client_is_sent_to_retry_only_with_503():
    assert Reason.PEER_REPLACED.retry_helps
    assert not Reason.LENGTH_MISMATCH.retry_helps
    assert not Reason.CLIENT_ABORT.retry_helps


def test_a_clients_abort_is_no_failure():
    assert Reason.CLIENT_ABORT.outcome is Outcome.ABORTED
    assert Reason.CLIENT_ABORT.http_status is None


def test_an_unknown_label_is_an_error():
    with pytest.raises(ValueError, match="no_such_reason"):
        Reason("no_such_reason")


@pytest.mark.parametrize("role", Role)
def test_every_phase_has_its_own_deadline_reason_and_all_are_failures(role):
    reasons = DEADLINE_REASON[role]
    assert tuple(reasons) == PHASES[role]
    assert len(set(reasons.values())) == len(reasons)
    assert {reason.outcome for reason in reasons.values()} == {Outcome.FAILED}


def test_the_client_may_retry_after_any_deadline():
    assert all(reason.retry_helps for reasons in DEADLINE_REASON.values() for reason in reasons.values())
