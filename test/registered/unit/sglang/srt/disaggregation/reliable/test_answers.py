"""What the client of a failed room is answered, with upstream's own ``prepare_abort`` and finish reasons."""

from http import HTTPStatus
from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.utils import prepare_abort
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH

from sglang.srt.disaggregation.reliable import answers
from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

ROOM = 7


class Request:
    """What ``prepare_abort`` and the hook look at of upstream's ``Req``."""

    rid, bootstrap_room, return_logprob = "r", ROOM, False
    finished_reason = to_finish = None


@pytest.fixture
def accounts():
    accounts = Accounts(Role.DECODE)
    accounts.opened(ROOM)
    return accounts


@pytest.fixture
def req(accounts):
    req = Request()
    answers.keep(req, accounts)
    return req


def answered(req, status_code=HTTPStatus.INTERNAL_SERVER_ERROR) -> FINISH_ABORT:
    answers.abort_with_reason(prepare_abort, req, "Decode transfer failed", status_code)
    return req.finished_reason


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.http_status is not None])
def test_the_reason_decides_the_status_and_leads_the_message(accounts, req, reason):
    accounts.refused(ROOM, reason)
    finish = answered(req)
    assert finish.status_code == reason.http_status
    # Upstream's streams show an error only where the status has this type.
    assert isinstance(finish.status_code, HTTPStatus)
    assert finish.message == f"{reason}: {reason.sentence} Decode transfer failed"


def test_a_clients_own_abort_keeps_upstreams_status(accounts, req):
    accounts.refused(ROOM, Reason.CLIENT_ABORT)
    assert answered(req).status_code == HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize("status_code", [HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE, None])
def test_what_upstream_is_sure_of_stays(accounts, req, status_code):
    accounts.refused(ROOM, Reason.LENGTH_MISMATCH)
    assert answered(req, status_code).status_code == status_code


def test_a_room_refused_at_its_very_end_is_not_cleared_yet(accounts, req):
    accounts.ledger.enter(ROOM, DecodePhase.FINISHING)
    finish = answered(req)
    assert finish.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert finish.message.startswith("aux_mismatch: ")


@pytest.mark.parametrize("end", [None, (Outcome.SUCCESS, Reason.DELIVERED)])
def test_a_failure_that_is_not_the_rooms_is_left_alone(accounts, req, end):
    if end:
        accounts.ledger.end(ROOM, *end)
    assert answered(req).message == "Decode transfer failed"
    assert answered(req).status_code == HTTPStatus.INTERNAL_SERVER_ERROR


def test_a_request_without_a_room_here_is_left_alone():
    assert answered(Request()).message == "Decode transfer failed"


def test_the_room_is_named_after_its_request(accounts, req):
    assert [room.rid for room in accounts.ledger.live_rooms()] == ["r"]


@pytest.mark.parametrize(
    ("finished", "pending", "reason"),
    [
        (None, None, Reason.CLIENT_ABORT),
        (FINISH_ABORT("Aborted"), None, Reason.CLIENT_ABORT),
        (None, FINISH_ABORT("too long", HTTPStatus.BAD_REQUEST), Reason.REQUEST_INVALID),
        (FINISH_ABORT("grammar", HTTPStatus.INTERNAL_SERVER_ERROR), None, Reason.INTERNAL_ERROR),
        (FINISH_ABORT("queue", HTTPStatus.SERVICE_UNAVAILABLE), None, Reason.NO_MEMORY),
        (FINISH_LENGTH(length=0), None, Reason.CLIENT_ABORT),
    ],
)
def test_why_the_scheduler_gives_a_room_up(finished, pending, reason):
    assert answers.wanted_end(SimpleNamespace(finished_reason=finished, to_finish=pending)) is reason


def test_nobody_knows_the_request_of_a_room_without_one():
    assert answers.wanted_end(None) is Reason.CLIENT_ABORT
