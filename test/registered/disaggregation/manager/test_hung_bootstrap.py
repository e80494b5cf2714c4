"""A bootstrap server that hangs holds up its own rooms, and no step of the loop that serves the others."""

import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from harness.loop import FAILED, SUCCESS, LoopSpec
from harness.managers import TCP, WAITING, Nursery, RoleProcess
from harness.roles import RoleSpec
from harness.servers import free_port
from sglang.srt.disaggregation.reliable.report import LoggedRoom, parse_warning_line

STEP_S = 0.5
"""Upstream waits up to 5 s for an answer, on the loop."""
PAGES = list(range(4))


@dataclass
class World:
    """One decode, and the prefills it has rooms with."""

    nursery: Nursery
    decode: RoleProcess
    number: int = 100

    def prefill(self, **spec) -> RoleProcess:
        return self.nursery.start(RoleSpec("prefill", free_port(), dict(TCP), **spec))

    def submit(self, prefill: RoleProcess) -> int:
        """A request that decode has, and prefill does not yet."""
        self.number += 1
        self.decode.call("submit", self.number, address(prefill), PAGES)
        return self.number

    def serve(self, prefill: RoleProcess, room: int) -> tuple[int, float, str]:
        """Prefill's half of the room; returns how it ended on decode, and after how long."""
        prefill.call("open", room)
        assert prefill.call("wait", room, [WAITING, FAILED], 10.0)[0] == WAITING
        prefill.call("send", room, PAGES, room % prefill.spec.aux_slots)
        assert prefill.call("wait", room, [SUCCESS, FAILED], 10.0)[0] == SUCCESS
        prefill.call("clear", room)
        return self.decode.call("end", room, 20.0)

    def transfer(self, prefill: RoleProcess) -> float:
        status, seconds, text = self.serve(prefill, self.submit(prefill))
        assert status == SUCCESS, text
        return seconds


def address(prefill: RoleProcess) -> str:
    return f"127.0.0.1:{prefill.spec.bootstrap_port}"


@pytest.fixture(scope="module")
def world(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[World]:
    if request.config.getoption("--upstream", default=False):
        pytest.skip("needs our classes")
    decode = nursery.start(
        LoopSpec("decode", free_port(), {**TCP, "SGLANG_PD_DECODE_RESOLVING_TIMEOUT": "20"}, attempts=2)
    )
    yield World(nursery, decode)
    decode.close()


@pytest.fixture(scope="module")
def healthy(world: World) -> Iterator[RoleProcess]:
    prefill = world.prefill()
    world.transfer(prefill)
    yield prefill
    prefill.close()


@pytest.fixture
def stopped(world: World) -> Iterator[RoleProcess]:
    """A prefill that the test stops: connections to it are taken, and nothing ever comes back."""
    prefill = world.prefill()
    yield prefill
    prefill.close()


@pytest.mark.parametrize("known", [False, True], ids=["layout unknown", "layout known, ranks unknown"])
def test_the_others_rooms_go_on_and_its_own_when_it_does(
    world: World, healthy: RoleProcess, stopped: RoleProcess, known: bool
):
    before = min(world.transfer(healthy) for _ in range(5))
    if known:
        assert world.decode.call("know", address(stopped))
    world.decode.call("slowest_step")
    stopped.signal(signal.SIGSTOP)
    waiting = world.submit(stopped)
    during = [world.transfer(healthy) for _ in range(10)]
    slowest = world.decode.call("slowest_step")
    print(f"a room took {before:.3f} s before, at most {max(during):.3f} s meanwhile; slowest step {slowest:.3f} s")
    assert max(during) < before + STEP_S
    assert slowest < STEP_S
    stopped.signal(signal.SIGCONT)
    assert world.serve(stopped, waiting)[0] == SUCCESS


def test_nobody_listens_there(world: World, healthy: RoleProcess):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        world.number += 1
        world.decode.call("submit", world.number, f"127.0.0.1:{nobody.getsockname()[1]}", PAGES)
        status, seconds, text = world.decode.call("end", world.number, 20.0)
    print(f"failed after {seconds:.1f} s: {text}")
    assert status == FAILED
    assert ended(world, world.number).reason == "bootstrap_unreachable"
    assert world.transfer(healthy) < STEP_S


def test_a_prefill_of_another_page_size_fails_its_rooms_and_not_the_server(world: World, healthy: RoleProcess):
    other = world.prefill(page_size=8)
    room = world.submit(other)
    status, seconds, text = world.decode.call("end", room, 20.0)
    print(f"failed after {seconds:.3f} s: {text}")
    assert status == FAILED
    assert ended(world, room).reason == "peer_incompatible"
    assert world.transfer(healthy) < STEP_S
    other.close()


def test_an_abort_while_it_is_asked_reaches_prefill_once_it_answers(world: World, stopped: RoleProcess):
    assert world.decode.call("know", address(stopped))
    room = world.number = world.number + 1
    stopped.call("open", room)
    stopped.signal(signal.SIGSTOP)
    world.decode.call("submit", room, address(stopped), PAGES)
    world.decode.call("abort_room", room)
    assert world.decode.call("end", room, 5.0)[0] == FAILED
    stopped.signal(signal.SIGCONT)
    status, waited = stopped.call("wait", room, [FAILED], 10.0)
    print(f"prefill knew {waited:.3f} s after it went on")
    assert status == FAILED
    assert waited < 1
    stopped.call("clear", room)


def ended(world: World, room: int) -> LoggedRoom:
    (line,) = [line for line in map(parse_warning_line, world.decode.call("ended")) if line.room == room]
    return line
