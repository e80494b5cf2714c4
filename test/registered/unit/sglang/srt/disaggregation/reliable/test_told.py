import pytest

from sglang.srt.disaggregation.reliable import told
from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason


@pytest.mark.parametrize(
    ("by", "there", "here"),
    [
        (Role.PREFILL, Reason.CLIENT_ABORT, Reason.PREFILL_ABORT),
        (Role.PREFILL, Reason.SHUTDOWN, Reason.PREFILL_ABORT),
        (Role.PREFILL, Reason.TRANSFER_TIMEOUT, Reason.TRANSFER_TIMEOUT),
        (Role.PREFILL, Reason.LENGTH_MISMATCH, Reason.LENGTH_MISMATCH),
        (Role.PREFILL, Reason.REQUEST_INVALID, Reason.REQUEST_INVALID),
        (Role.PREFILL, Reason.INTERNAL_ERROR, Reason.PEER_FAILED),
        (Role.PREFILL, Reason.OTHER_RANK_FAILED, Reason.PEER_FAILED),
        (Role.PREFILL, Reason.PEER_LOST, Reason.PEER_FAILED),
        (Role.DECODE, Reason.CLIENT_ABORT, Reason.DECODE_ABORT),
        (Role.DECODE, Reason.RETRACTED, Reason.DECODE_ABORT),
        (Role.DECODE, Reason.PREFILL_NEVER_SENT, Reason.PREFILL_NEVER_SENT),
        (Role.DECODE, Reason.NO_MEMORY, Reason.PEER_FAILED),
    ],
)
def test_what_a_reason_of_the_other_side_means_here(by, there, here):
    assert told.here(by, there) is here


@pytest.mark.parametrize("by", Role)
def test_no_end_becomes_a_success_and_no_failure_an_abort(by):
    for reason in Reason:
        if reason.outcome is not Outcome.SUCCESS:
            here = told.here(by, reason)
            assert here.outcome in (reason.outcome, Outcome.FAILED)
            # Whatever it is, the client may retry it here where that helped there.
            assert here.http_status == reason.http_status or reason not in told.SHARED


@pytest.mark.parametrize(
    ("reason", "here"),
    [
        (None, Reason.DECODE_ABORT),
        (Reason.CLIENT_ABORT, Reason.DECODE_ABORT),
        (Reason.AUX_MISSING, Reason.AUX_MISSING),
    ],
)
def test_a_decode_that_gives_a_room_up_need_not_say_why(reason, here):
    assert told.abort_of_decode(reason) is here
