"""Prefill's control plane against a manager that only remembers: which decode is gone, and which one took its place."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable import peers, wire
from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.prefill import PrefillControl
from sglang.srt.disaggregation.reliable.reasons import Reason

HERE = wire.Address("127.0.0.1", 4000)
ADDRESS, _ = endpoint(HERE.ip, HERE.port)


class Manager:
    """Its decodes have other heads than it has, so that their pages are not compared."""

    bootstrap_timeout = 60.0
    attn_tp_size, is_mla_backend = 1, False

    def __init__(self) -> None:
        self.decode_kv_args_table: dict[str, Any] = {}
        self.transfer_infos: dict[int, dict[str, Any]] = {}
        self.request_status: dict[int, int] = {}
        self.failed: dict[int, Reason] = {}
        self.forgotten: list[str] = []
        self.connected: list[str] = []
        self.outbox = SimpleNamespace(connect=lambda address, _: self.connected.append(address))
        self.transport = SimpleNamespace(forget=self.forgotten.append)

    def _add_remote_peer(self, info: Any) -> None:
        self.decode_kv_args_table[info.agent_name] = info

    def record_failure(self, room: int, reason: Any) -> None:
        self.failed[room] = reason.reason

    def update_status(self, room: int, status: int) -> None:
        self.request_status[room] = status

    def waits(self, room: int, agent: str) -> None:
        self.request_status[room] = KVPoll.WaitingForInput
        self.transfer_infos[room] = {agent: None}


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> PrefillControl:
    class Info:
        @staticmethod
        def from_zmq(frames: list[bytes]) -> Any:
            return SimpleNamespace(
                agent_name=frames[0].decode(), endpoint=HERE.ip, dst_port=HERE.port, decode_tp_size=2
            )

    monkeypatch.setattr(peers, "KVArgsRegisterInfo", Info)
    return PrefillControl(Manager())


def register(control: PrefillControl, agent: str) -> None:
    message = wire.Registration(HERE, agent, 0, 1)
    assert control._registration(message, [b"", agent.encode()]) == "handled"


def test_a_decode_that_is_gone_ends_its_rooms_and_no_others(control: PrefillControl):
    manager = control._manager
    register(control, "old")
    manager.waits(1, "old")
    manager.waits(2, "another")
    control.lost(ADDRESS, time.monotonic())
    assert manager.failed == {1: Reason.PEER_LOST}
    assert manager.forgotten == ["old"]
    assert not manager.decode_kv_args_table


def test_a_loss_that_is_told_late_is_not_that_of_the_process_which_came_since(control: PrefillControl):
    manager = control._manager
    lost_at = time.monotonic()
    register(control, "new")
    manager.waits(1, "new")
    control.lost(ADDRESS, lost_at)
    assert not manager.failed
    assert set(manager.decode_kv_args_table) == {"new"}


def test_a_decode_at_the_address_of_another_proves_that_one_gone(control: PrefillControl):
    manager = control._manager
    register(control, "old")
    manager.waits(1, "old")
    register(control, "new")
    assert manager.failed == {1: Reason.PEER_LOST}
    assert set(manager.decode_kv_args_table) == {"new"}


def test_a_decode_that_registers_again_stays_itself(control: PrefillControl):
    manager = control._manager
    register(control, "same")
    manager.waits(1, "same")
    lost_at = time.monotonic()
    register(control, "same")
    control.lost(ADDRESS, lost_at)
    assert not manager.failed
    assert manager.connected == [ADDRESS, ADDRESS]
