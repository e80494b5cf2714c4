"""What a request's end says about its room, and what its room's end says to its client."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.phases import DecodePhase
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

# The accounts that the room of a request of upstream's is kept in, for as long as the request lives.
_accounts: weakref.WeakKeyDictionary[Any, Accounts] = weakref.WeakKeyDictionary()


def keep(req: Any, accounts: Accounts) -> None:
    """The room of ``req``, a request of upstream's scheduler, is kept in ``accounts``."""
    _accounts[req] = accounts
    accounts.ledger.identify(req.bootstrap_room, rid=req.rid)


def accounts_of(req: Any) -> Accounts | None:
    """None where the request's room is kept nowhere."""
    return _accounts.get(req)


def abort_with_reason(
    original: Callable[..., Any], req: Any, error_message: str, status_code: int | None = None
) -> Any:
    """AROUND hook on ``prepare_abort``: where the request's room has ended, its reason leads the message, and decides
    between 500 and 503 where upstream says 500 to everything."""
    reason = end_of_room(req, refused=status_code == HTTPStatus.INTERNAL_SERVER_ERROR)
    if reason is None:
        return original(req, error_message, status_code)
    if status_code == HTTPStatus.INTERNAL_SERVER_ERROR and reason.http_status is not None:
        # The type, not only the number: upstream's streams tell an error from a client's own abort by it.
        status_code = HTTPStatus(reason.http_status)
    return original(req, f"{reason}: {reason.sentence} {error_message}", status_code)


def end_of_room(req: Any, refused: bool = False) -> Reason | None:
    """Why the request's room did not succeed; None where it did, has not ended, or the request has no room here.

    ``refused``: decode's scheduler fails the request. Where its room is but to be taken over, it is for its auxiliary
    data, and the scheduler clears the room only afterwards.
    """
    accounts = _accounts.get(req)
    if accounts is None:
        return None
    ledger, room = accounts.ledger, req.bootstrap_room
    if refused and ledger.phase(room) == DecodePhase.FINISHING:
        return Reason.AUX_MISMATCH
    reason = ledger.end_reason(room)
    return None if reason is None or reason.outcome is Outcome.SUCCESS else reason


def wanted_end(req: Any) -> Reason:
    """Why the scheduler gives a room up: ``req`` is its request, None where that is not known."""
    finish = None if req is None else req.finished_reason or req.to_finish
    status_code = getattr(finish, "status_code", None)
    if status_code is None:
        return Reason.CLIENT_ABORT
    if status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Reason.REQUEST_INVALID
    return Reason.NO_MEMORY if status_code == HTTPStatus.SERVICE_UNAVAILABLE else Reason.INTERNAL_ERROR
