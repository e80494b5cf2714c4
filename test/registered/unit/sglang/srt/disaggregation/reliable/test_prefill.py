"""Prefill's control plane against a manager that only remembers: which decode is gone, and which one took its place."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable import incarnation, peers, prefill, stamps, wire
from sglang.srt.disaggregation.reliable.accounts import Accounts
from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.phases import Role
from sglang.srt.disaggregation.reliable.prefill import PrefillControl
from sglang.srt.disaggregation.reliable.pulse import Pulse
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.stamps import Stamp

HERE = wire.Address("127.0.0.1", 4000)
ADDRESS, _ = endpoint(HERE.ip, HERE.port)
INCARNATION, ANOTHER = "0a1b2c3d@1764534196", "0a1b2c3d@1764534197"
ROOM = 7


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
        self.sent: list[list[bytes]] = []
        self.outbox = SimpleNamespace(
            connect=lambda address, _: self.connected.append(address),
            send=lambda address, frames, ipv6: self.sent.append(frames),
        )
        self.accounts = Accounts(Role.PREFILL)
        self.req_to_decode_prefix_len: dict[int, int] = {}
        self.transport = SimpleNamespace(forget=self.forgotten.append)
        self.pulse = Pulse(5.0)

    def _add_remote_peer(self, info: Any) -> None:
        self.decode_kv_args_table[info.agent_name] = info

    def _prefill_unique_rank(self) -> int:
        return 0

    def _room_notify_targets(self, room: int) -> list[Any]:
        return []

    def check_status(self, room: int) -> int:
        return self.request_status[room]

    def resolve_kv_replica_factor(self, infos: Any) -> None:
        pass

    def send_kv_status_message(self, *, failure_reason: str, **_: Any) -> None:
        self.sent.append([failure_reason.encode()])

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

    class Transfer:
        decode_prefix_len = 0
        required_dst_info_num = 1

        @classmethod
        def from_zmq(cls, frames: list[bytes]) -> Any:
            return cls()

    monkeypatch.setattr(peers, "KVArgsRegisterInfo", Info)
    monkeypatch.setattr(prefill, "TransferInfo", Transfer)
    return PrefillControl(Manager())


def register(control: PrefillControl, agent: str) -> None:
    message = wire.Registration(HERE, agent, 0)
    assert control._registration(message, Stamp(2, INCARNATION), [b"", agent.encode()]) == "handled"


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
    assert manager.failed == {1: Reason.PEER_REPLACED}
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


def test_a_silent_decode_loses_its_rooms_and_nothing_else(control: PrefillControl):
    manager = control._manager
    register(control, "a")
    manager.waits(1, "a")
    control.silent(ADDRESS, "does not answer")
    assert manager.failed == {1: Reason.PEER_SILENT}
    assert manager.forgotten == []
    manager.failed.clear()
    # It is told again as long as it lasts: a room that has failed is left alone, a new one fails.
    manager.waits(2, "a")
    control.silent(ADDRESS, "does not answer")
    assert manager.failed == {2: Reason.PEER_SILENT}


@pytest.mark.parametrize(("sender", "gone"), [(INCARNATION, []), (ANOTHER, ["a"])])
def test_an_answer_tells_whether_it_is_still_the_same(control: PrefillControl, sender: str, gone: list[str]):
    manager = control._manager
    register(control, "a")
    control.handle([*wire.Pong(ADDRESS).frames(), Stamp(2, sender).frame()])
    assert manager.forgotten == gone


def test_a_ping_is_answered(control: PrefillControl):
    control.handle([*wire.Ping(HERE, "tcp://127.0.0.1:1").frames(), Stamp(2, INCARNATION).frame()])
    (frames,) = control._manager.sent
    assert wire.parse_to_decode(frames) == wire.Pong("tcp://127.0.0.1:1")


def metadata(control: PrefillControl, serial: int = 1, attempt: int = 0, to: str | None = None) -> str:
    message = wire.Metadata(ROOM, HERE, "agent", 1, 1, False)
    return control._metadata(message, Stamp(2, INCARNATION, to, serial, attempt), [b""])


def answers(control: PrefillControl) -> list[bytes]:
    """What decode was sent, without the stamps, since the last time."""
    sent, control._manager.sent = control._manager.sent, []
    return [frames[0] for frames in sent]


def test_metadata_that_comes_again_is_acknowledged_and_changes_nothing(control: PrefillControl):
    register(control, "agent")
    assert metadata(control) == "handled"
    assert answers(control) == []
    first = control._manager.transfer_infos[ROOM]["agent"]
    assert metadata(control, attempt=1) == "stale"
    assert answers(control) == [wire.RECEIVED]
    assert control._manager.transfer_infos[ROOM]["agent"] is first
    assert control._manager.accounts.ledger.phase(ROOM) is None


def test_metadata_that_was_lost_is_taken_the_second_time(control: PrefillControl):
    register(control, "agent")
    assert metadata(control, attempt=1) == "handled"
    assert answers(control) == [wire.RECEIVED]
    assert control._manager.request_status[ROOM] == KVPoll.WaitingForInput


def test_a_delivery_that_was_missed_is_told_again_and_only_of_that_room(control: PrefillControl):
    manager = control._manager
    register(control, "agent")
    metadata(control)
    control.delivered(ROOM)
    del manager.transfer_infos[ROOM], manager.request_status[ROOM]
    assert metadata(control, attempt=1) == "stale"
    assert answers(control) == [wire.DELIVERED]
    assert ROOM not in manager.transfer_infos
    # Its number is used again, and this is the first that is heard of it.
    assert metadata(control, serial=2, attempt=1) == "handled"
    assert answers(control) == [wire.RECEIVED]


def test_a_failure_that_was_missed_is_told_again(control: PrefillControl):
    register(control, "agent")
    metadata(control)
    control._manager._staging_outstanding, control._manager.enable_deferred_decode_kv_release = {}, True
    control.ended(ROOM, "why")
    del control._manager.transfer_infos[ROOM], control._manager.request_status[ROOM]
    answers(control)
    assert metadata(control, attempt=1) == "stale"
    assert answers(control) == [b"why"]


def test_metadata_for_a_process_that_was_here_before_is_refused(control: PrefillControl):
    """Decode is to register anew: its buffers are known here by chance only."""
    register(control, "agent")
    assert metadata(control, to=ANOTHER) == "rejected"
    assert answers(control) == [wire.UNREGISTERED]
    assert metadata(control, to=incarnation.mine()) == "handled"


def test_what_is_sent_names_the_process_that_it_is_for(control: PrefillControl):
    register(control, "agent")
    metadata(control, attempt=1)
    (frames,) = control._manager.sent
    stamp, _ = stamps.take(frames)
    assert (stamp.sender, stamp.to) == (incarnation.mine(), INCARNATION)
    control.lost(ADDRESS, time.monotonic())
    assert control.stamped(ADDRESS, [b"a"]) == [b"a"]
