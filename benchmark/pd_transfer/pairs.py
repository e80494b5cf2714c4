"""A prefill and a decode, each in a process of its own, that generate their own load."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from harness.managers import TCP, UPSTREAM, Nursery, RoleProcess
from harness.servers import free_port
from pd_transfer.geometry import Cell
from pd_transfer.load import load_spec
from pd_transfer.running import Run

TRANSPORTS: dict[str, dict[str, str]] = {"shm": {}, "tcp": TCP}
SIDES: dict[str, dict[str, str]] = {"ours": {}, "upstream": UPSTREAM}
# Between the room numbers of a pair's runs: no room is used twice.
ROOM_STRIDE = 1_000_000


class Pair:
    """A prefill and a decode that generate their own load; :meth:`pause` takes them off the machine's cores."""

    def __init__(self, prefill: RoleProcess, decode: RoleProcess) -> None:
        self.prefill, self.decode = prefill, decode
        self._first_rooms = itertools.count(1, ROOM_STRIDE)

    def run(self, rooms: int) -> tuple[Run, Run]:
        """That many new rooms through the pair: what each side measured."""
        first = next(self._first_rooms)
        for role in (self.prefill, self.decode):
            role.call("begin", first, rooms)
        sent, arrived = results(self.prefill, self.decode)
        return sent, arrived

    def verify(self) -> int:
        """Compare the last room of every slot byte by byte; returns the bytes. Raises ``RuntimeError``."""
        rooms = self.decode.call("last_rooms")
        return self.decode.call("verify", rooms, self.prefill.call("slots_of", rooms))

    def pause(self) -> None:
        for role in (self.decode, self.prefill):
            role.signal(signal.SIGSTOP)

    def resume(self) -> None:
        for role in (self.prefill, self.decode):
            role.signal(signal.SIGCONT)


@contextmanager
def pair(nursery: Nursery, side: str, transport: str, cell: Cell, idle_s: float) -> Iterator[Pair]:
    """A pair with our classes or upstream's on both sides."""
    port, environment = free_port(), {**TRANSPORTS[transport], **SIDES[side]}
    wanted = "ReliableKVManager" if side == "ours" else "NixlKVManager"
    with closing() as roles:
        for mode in ("prefill", "decode"):
            roles.append(nursery.start(load_spec(mode, port, environment, cell, idle_s)))
            if roles[-1].info["class"] != wanted:
                raise RuntimeError(f"{side} is served by {roles[-1].info['class']} on {mode}, not by {wanted}")
        yield Pair(*roles)


@contextmanager
def closing() -> Iterator[list[RoleProcess]]:
    roles: list[RoleProcess] = []
    try:
        yield roles
    finally:
        for role in roles:
            role.close()


def results(*roles: RoleProcess) -> list[Run]:
    """The runs of all roles; raises what the first of them that fails raises, without waiting for the others."""
    runs: dict[RoleProcess, Run] = {}
    while len(runs) < len(roles):
        for role in roles:
            if role not in runs and (run := role.call("finished", 0.5)) is not None:
                runs[role] = run
    return [runs[role] for role in roles]
