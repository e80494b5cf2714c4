"""The deadline thread against a manager that only remembers what it was told."""

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.deadlines import Overdue
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.watch import Watch, deadlines_of, variable
from sglang_pd import environ
from sglang_pd.environ import EnvError


class Manager:
    def __init__(self, role):
        self.accounts = Accounts(role)
        self.failure_records = {}
        self.prefill = self
        self.told = []

    def record_failure(self, room, text):
        self.failure_records[room] = text

    def update_status(self, room, status):
        assert status == KVPoll.Failed
        self.accounts.status(room, status, self.failure_records[room])

    def ended(self, room, text):
        self.told.append((room, text))


class Receiver:
    def __init__(self, ledger):
        self.ledger, self.reasons = ledger, []

    def expire(self, overdue, reason):
        if self.ledger.expire(overdue.room, overdue.generation, overdue.phase, reason.reason):
            self.reasons.append(reason.reason)


def wait_for_end(manager):
    import threading

    ended, records = threading.Event(), []
    manager.accounts.ledger.on_end.add(lambda record: (records.append(record), ended.set()))
    return ended, records


@pytest.mark.parametrize("role", list(Role))
def test_every_phase_has_a_variable_with_help(role):
    assert set(deadlines_of(role).seconds) == set(PHASES[role])
    for phase in PHASES[role]:
        assert "Seconds" in environ.fields()[variable(role, phase)].help


def test_a_bad_value_is_named(monkeypatch):
    monkeypatch.setenv("SGLANG_PD_DECODE_WAITING_TIMEOUT", "-1")
    with pytest.raises(EnvError, match=r"SGLANG_PD_DECODE_WAITING_TIMEOUT='-1'.*above 0"):
        deadlines_of(Role.DECODE)


def test_prefill_fails_the_room_and_tells_decode(monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT", "0.05")
    manager = Manager(Role.PREFILL)
    ended, records = wait_for_end(manager)
    Watch(manager).start()
    manager.accounts.opened(7)
    assert ended.wait(10)
    assert [record.reason for record in records] == [Reason.METADATA_TIMEOUT]
    assert manager.told
    assert "reason=metadata_timeout" in caplog.text


def test_decode_fails_the_room_and_its_receiver_tells_prefill(monkeypatch):
    monkeypatch.setenv("SGLANG_PD_DECODE_WAITING_TIMEOUT", "0.05")
    manager = Manager(Role.DECODE)
    receiver = Receiver(manager.accounts.ledger)
    ended, records = wait_for_end(manager)
    watch = Watch(manager)
    watch.ends[7] = receiver
    watch.start()
    manager.accounts.opened(7)
    manager.accounts.ledger.enter(7, DecodePhase.WAITING)
    assert ended.wait(10)
    assert [record.reason for record in records] == [Reason.PREFILL_NEVER_SENT]
    deadline_thread_done = watch._thread.stop(10)
    assert deadline_thread_done
    assert receiver.reasons == [Reason.PREFILL_NEVER_SENT]


def test_a_room_that_went_on_or_another_of_its_number_is_left_alone():
    manager = Manager(Role.DECODE)
    ledger, watch = manager.accounts.ledger, Watch(manager)
    receiver = Receiver(ledger)
    watch.ends[7] = receiver
    manager.accounts.opened(7)
    ledger.enter(7, DecodePhase.WAITING)
    (record,) = ledger.live_rooms()
    overdue = Overdue(record, Reason.PREFILL_NEVER_SENT)
    ledger.enter(7, DecodePhase.FINISHING)
    watch._on_overdue(overdue)
    manager.accounts.accepted(7)
    manager.accounts.opened(7)
    ledger.enter(7, DecodePhase.WAITING)
    watch._on_overdue(overdue)
    assert receiver.reasons == []
    assert ledger.phase(7) is DecodePhase.WAITING
