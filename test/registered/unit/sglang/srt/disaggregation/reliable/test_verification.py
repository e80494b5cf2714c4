"""Rooms whose checksum is compared at the first batch, with upstream's own comparison and finish reasons."""

from http import HTTPStatus
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang.srt.disaggregation import decode as upstream
from sglang.srt.disaggregation.reliable import answers, verification
from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver

DIGEST = 4711
Mixin = upstream.SchedulerDisaggregationDecodeMixin


class Request:
    """What upstream's comparison looks at of its ``Req``."""

    return_logprob = False
    finished_reason = to_finish = None

    def __init__(self, room, digest):
        self.rid, self.bootstrap_room, self.expected_kv_checksum = f"r{room}", room, digest
        self.bootstrap_host, self.bootstrap_port = "127.0.0.1", 8998
        self.origin_input_ids, self.kv = [1, 2, 3], SimpleNamespace(cache_protected_len=0)


class Batch:
    def __init__(self, *reqs):
        self.reqs = list(reqs)

    def filter_batch(self, keep_indices):
        self.reqs = [self.reqs[index] for index in keep_indices]


@pytest.fixture
def scheduler(monkeypatch):
    """Decode's scheduler as far as upstream's comparison goes, hooked; every KV digests to ``DIGEST``."""
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(upstream, "page_indices_for_request", lambda *args, **kwargs: None)
    monkeypatch.setattr(upstream, "state_indices_for_request", lambda *args, **kwargs: None)
    monkeypatch.setattr(upstream, "release_kv_cache", lambda *args, **kwargs: None)
    monkeypatch.setattr(
        upstream,
        "prepare_abort",
        lambda *args, _original=upstream.prepare_abort, **kwargs: answers.abort_with_reason(_original, *args, **kwargs),
    )
    scheduler = SimpleNamespace(
        kv_checksum_computer=SimpleNamespace(compute=lambda pages, states: DIGEST),
        disagg_decode_prealloc_queue=SimpleNamespace(
            kv_manager=SimpleNamespace(should_verify_kv_checksum=lambda address: True)
        ),
        attn_tp_cpu_group=None,
        output_streamer=SimpleNamespace(stream_output=lambda *args: None),
        tree_cache=None,
        metrics_reporter=SimpleNamespace(enable_metrics=False),
        waiting_queue=[],
    )

    def mismatch(req, msg):
        verification.mismatched(scheduler, req, msg)
        Mixin._handle_kv_checksum_mismatch(scheduler, req, msg)

    scheduler._handle_kv_checksum_mismatch = mismatch
    yield scheduler
    assert not verification._waiting


@pytest.fixture
def accounts():
    return Accounts(Role.DECODE)


def handed_over(accounts: Accounts, room: int, digest: int) -> Request:
    """A request whose transfer was taken over by the scheduler, as :class:`ReliableKVReceiver` sees it."""
    req = Request(room, digest)
    accounts.opened(room)
    answers.keep(req, accounts)
    accounts.status(room, KVPoll.Success)
    receiver = ReliableKVReceiver.__new__(ReliableKVReceiver)
    receiver.kv_mgr, receiver.bootstrap_room, receiver.req = SimpleNamespace(accounts=accounts), room, req
    receiver._handed_over()
    return req


def compare(scheduler, *reqs) -> list[Request]:
    batch = Batch(*reqs)
    verification.compare(Mixin._verify_kv_checksums, scheduler, batch)
    return batch.reqs


def ended(accounts: Accounts) -> dict:
    accounts.ledger.check()
    return {record.room: record.reason for record in accounts.ledger.ended_rooms()}


def test_without_a_checksum_a_room_is_delivered_at_once(scheduler, accounts):
    handed_over(accounts, 1, digest=0)
    assert ended(accounts) == {1: Reason.DELIVERED}


def test_a_room_is_live_until_its_checksum_was_right(scheduler, accounts):
    req = handed_over(accounts, 1, DIGEST)
    assert accounts.ledger.phase(1) == DecodePhase.VERIFYING
    assert ended(accounts) == {}
    assert compare(scheduler, req) == [req]
    assert ended(accounts) == {1: Reason.DELIVERED}
    # Upstream compares once; the request may be in many batches.
    assert compare(scheduler, req) == [req]
    assert ended(accounts) == {1: Reason.DELIVERED}


def test_a_wrong_checksum_is_a_failure_that_a_retry_may_cure(scheduler, accounts):
    wrong, right = handed_over(accounts, 1, DIGEST + 1), handed_over(accounts, 2, DIGEST)
    assert compare(scheduler, wrong, right) == [right]
    assert ended(accounts) == {1: Reason.CHECKSUM_MISMATCH, 2: Reason.DELIVERED}
    assert wrong.finished_reason.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert wrong.finished_reason.message.startswith("checksum_mismatch: ")
    assert right.finished_reason is None


def test_a_room_that_was_not_verified_in_time_is_not_served_either(scheduler, accounts):
    req = handed_over(accounts, 1, DIGEST)
    accounts.ledger.end(1, Outcome.FAILED, Reason.VERIFICATION_TIMEOUT)
    assert compare(scheduler, req) == []
    assert ended(accounts) == {1: Reason.VERIFICATION_TIMEOUT}
    assert req.finished_reason.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert req.finished_reason.message.startswith("verification_timeout: ")


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FINISH_ABORT(), Reason.CLIENT_ABORT),
        (FINISH_ABORT("too long", HTTPStatus.SERVICE_UNAVAILABLE), Reason.NO_MEMORY),
        (None, Reason.RETRACTED),
    ],
)
def test_a_request_that_leaves_the_queue_without_a_batch(scheduler, accounts, finish, reason):
    req = handed_over(accounts, 1, DIGEST)
    scheduler.waiting_queue = [req]
    verification.look_for_lost(None, scheduler)
    assert ended(accounts) == {}
    scheduler.waiting_queue, req.finished_reason = [], finish
    verification.look_for_lost(None, scheduler)
    assert ended(accounts) == {1: reason}
