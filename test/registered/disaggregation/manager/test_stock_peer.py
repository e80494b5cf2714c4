"""A stock upstream on the other side, restarted: what can heal without its help does."""

import time

import pytest

from harness.managers import FAILED, SUCCESS, TCP, UPSTREAM, WAITING, Nursery, Pair, RoleProcess
from harness.roles import RoleSpec

HEARTBEAT = {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2.0"}
# A loss is seen at once, and not by a heartbeat.
KNOWN_WITHIN_S = 2.0
HEALS_WITHIN_S = 5.0


@pytest.fixture(autouse=True)
def with_our_classes(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("needs our classes on one side")


def ends(role: RoleProcess, room: int) -> None:
    status, waited = role.call("wait", room, [FAILED, SUCCESS], 20.0)
    assert status == FAILED
    print(f"{role.spec.mode} knew after {waited:.2f} s: {role.call('failure', room)}")
    assert waited < KNOWN_WITHIN_S


def test_a_stock_decode_dies_and_another_comes(nursery: Nursery):
    pair = Pair(nursery, {}, UPSTREAM, **TCP)
    pair.transfer()
    for _ in range(2):
        room = pair.room()
        pair.open(room)
        assert pair.prefill.call("wait", room, [WAITING], 5.0)[0] == WAITING
        pair.decode.close()
        ends(pair.prefill, room)
        pair.decode = pair.add_decode({**TCP, **UPSTREAM})
        assert pair.transfer() < HEALS_WITHIN_S
    pair.close()


def test_a_stock_prefill_dies_and_another_comes_on_the_same_ports(nursery: Nursery):
    pair = Pair(nursery, UPSTREAM, HEARTBEAT, **TCP)
    pair.transfer()
    for _ in range(2):
        room = pair.room()
        pair.open(room)
        pair.prefill.close()
        ends(pair.decode, room)
        pair.prefill = nursery.start(RoleSpec("prefill", pair.prefill.spec.bootstrap_port, {**TCP, **UPSTREAM}))
        start = time.monotonic()
        assert pair.transfer() < HEALS_WITHIN_S
        print(f"the next room is done {time.monotonic() - start:.2f} s after the new prefill was there")
    pair.close()
