"""What decode makes of prefill's word that a room failed."""

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable.decode import DecodeControl, told_by_prefill
from sglang.srt.disaggregation.reliable.reasons import Reason


class Manager:
    def __init__(self, **rooms):
        self.request_status = {int(room.removeprefix("room")): status for room, status in rooms.items()}
        self.applied = []

    def apply_prefill_status(self, **status):
        self.applied.append(status)


def status(room: bytes = b"7", status: bytes = b"0", text: bytes = b"why", *more: bytes) -> list[bytes]:
    return [b"KV_STATUS", room, status, b"2", text, *more]


@pytest.mark.parametrize(
    ("text", "reason", "here"),
    [
        ("client_abort: gone", Reason.CLIENT_ABORT, Reason.PREFILL_ABORT),
        ("2 writes not done", Reason.TRANSFER_TIMEOUT, Reason.TRANSFER_TIMEOUT),
        (None, Reason.PEER_FAILED, Reason.PEER_FAILED),
        # A prefill of upstream's has no label.
        ("Aborted by AbortReq.", None, Reason.PREFILL_ABORT),
        ("Request 7 timed out after 300.0s in KVPoll.Bootstrapping", None, Reason.METADATA_TIMEOUT),
        ("NIXL_ERR_BACKEND", None, Reason.NIXL_BACKEND),
        ("nobody has seen this before", None, Reason.PEER_FAILED),
        (None, None, Reason.PEER_FAILED),
    ],
)
def test_the_reason_here(text, reason, here):
    found = told_by_prefill(text, reason)
    assert found.reason is here
    assert found.startswith(f"{here}: prefill said: ")
    assert text is None or text in found


def test_a_failure_is_applied_with_its_reason():
    manager = Manager(room7=KVPoll.Transferring)
    assert DecodeControl(manager).handle(status(b"7", b"0", b"why", b"length_mismatch")) == ("status", "handled")
    (applied,) = manager.applied
    assert applied["status"] == KVPoll.Failed
    assert applied["failure_reason"].reason is Reason.LENGTH_MISMATCH


def test_a_success_has_no_failure():
    manager = Manager(room7=KVPoll.Transferring)
    DecodeControl(manager).handle(status(b"7", b"4", b""))
    assert [applied["failure_reason"] for applied in manager.applied] == [None]


@pytest.mark.parametrize("rooms", [{}, {"room7": KVPoll.Failed}])
def test_what_comes_after_the_end_changes_nothing(rooms):
    manager = Manager(**rooms)
    assert DecodeControl(manager).handle(status()) == ("status", "stale")
    assert not manager.applied
