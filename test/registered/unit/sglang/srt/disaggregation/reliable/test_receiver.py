"""Who may still give a room up when the scheduler is done with it: the deadline thread comes late, whatever it does."""

import dataclasses
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager, KVTransferError

from sglang.srt.disaggregation.reliable.accounts import Accounted, Accounts
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver

ROOM = 7
LATE: Failure = failure(Reason.AUX_MISSING, "too late")


class Manager(Accounted, CommonKVManager):
    """Upstream's statuses and acknowledgements with our accounts, without sockets and buffers."""

    def __init__(self) -> None:
        self.accounts = Accounts(Role.DECODE)
        self.defer_decode_allocation, self.deferred_bootstrap = False, None
        self.enable_deferred_decode_kv_release, self.enable_staging = True, False
        self._deferred_abort_ack_tracker: dict[int, Any] = {}
        self._deferred_abort_generation = 0
        self._deferred_ack_targets: dict[int, Any] = {}
        self._deferred_ack_poisoned_rooms: set[int] = set()
        self._staging_outstanding: dict[int, int] = {}
        self.request_status: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}
        self.failure_lock = threading.Lock()
        self.required_prefill_response_num_table: dict[int, int] = {}
        self.prefill_response_tracker: dict[int, set[int]] = {}
        self.addr_to_rooms_tracker: dict[str, set[int]] = defaultdict(set)
        self.watch = SimpleNamespace(ends={})
        self.local_ip, self.rank_port = "127.0.0.1", 1
        self.sent: list[bytes] = []
        self.outbox = SimpleNamespace(send=lambda address, frames, ipv6: self.sent.append(frames[0]))


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def receiver(manager: Manager) -> ReliableKVReceiver:
    """Its metadata has been sent, and everything arrived."""
    receiver = ReliableKVReceiver(manager, "127.0.0.1:8998", ROOM)
    receiver.bootstrap_infos, receiver.init_time = [{"rank_ip": "127.0.0.1", "rank_port": 2}], 1.0
    manager.accounts.ledger.enter(ROOM, DecodePhase.WAITING)
    manager.update_status(ROOM, KVPoll.Success)
    return receiver


def test_a_deadline_that_comes_before_the_scheduler_is_done_ends_the_room(receiver: ReliableKVReceiver):
    assert receiver.poll() == KVPoll.Success
    receiver.give_up(LATE)
    assert receiver.poll() == KVPoll.Failed
    assert receiver.kv_mgr.sent == [b"ABORT"]
    with pytest.raises(KVTransferError, match="aux_missing"):
        receiver.failure_exception()
    # What its scheduler does next; it gives the pages back once the acknowledgement is here.
    receiver.ensure_abort_notified(force_arm=True)
    assert receiver.kv_mgr.sent == [b"ABORT"]
    assert ROOM in receiver.kv_mgr._deferred_abort_ack_tracker


def test_a_deadline_that_comes_when_the_scheduler_is_done_changes_nothing(receiver: ReliableKVReceiver):
    manager = receiver.kv_mgr
    assert receiver.poll() == KVPoll.Success
    receiver.clear()
    receiver.give_up(LATE)
    receiver.ensure_abort_notified()
    assert manager.sent == []
    assert not manager._deferred_abort_ack_tracker
    assert not manager.failure_records
    (record,) = manager.accounts.ledger.ended_rooms()
    assert record.reason is Reason.DELIVERED


def test_a_deadline_of_a_phase_that_the_room_has_left_changes_nothing(receiver: ReliableKVReceiver):
    """Found overdue before the scheduler sent the metadata, told after it."""
    ledger = receiver.kv_mgr.accounts.ledger
    (record,) = ledger.live_rooms()
    receiver.expire(dataclasses.replace(record, phase=DecodePhase.ALLOCATING), LATE)
    assert receiver.poll() == KVPoll.Success
    assert receiver.kv_mgr.sent == []
    receiver.expire(record, LATE)
    assert receiver.poll() == KVPoll.Failed
    assert receiver.kv_mgr.sent == [b"ABORT"]
    assert [ended.reason for ended in ledger.ended_rooms()] == [Reason.AUX_MISSING]
