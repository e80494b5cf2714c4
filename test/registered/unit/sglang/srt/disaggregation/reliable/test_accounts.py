"""What is logged of rooms that end: one line by the rank that speaks, the others' reasons beside it."""

import logging

import pytest

from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.failure import failure
from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.report import MARK

ROOM = 7


def logged(speaks: bool, reason: Reason, caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    accounts = Accounts(Role.PREFILL, speaks)
    accounts.opened(ROOM)
    with caplog.at_level(logging.INFO):
        accounts.failed(ROOM, failure(reason, "why"))
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_the_rank_that_speaks_warns(caplog: pytest.LogCaptureFixture):
    ((level, text),) = logged(True, Reason.NIXL_BACKEND, caplog)
    assert level == logging.WARNING
    assert text.startswith(MARK)


def test_another_says_what_only_it_knows_and_is_not_taken_for_a_second_failure(caplog: pytest.LogCaptureFixture):
    ((level, text),) = logged(False, Reason.NIXL_BACKEND, caplog)
    assert level == logging.INFO
    assert MARK not in text
    assert f"room={ROOM} " in text
    assert "reason=nixl_backend" in text


@pytest.mark.parametrize("reason", [Reason.OTHER_RANK_FAILED, Reason.CLIENT_ABORT])
def test_it_is_quiet_about_what_it_only_heard_and_what_was_wanted(reason: Reason, caplog: pytest.LogCaptureFixture):
    assert logged(False, reason, caplog) == []
