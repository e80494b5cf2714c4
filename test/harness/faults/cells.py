"""The fault matrix: fault x phase x side x peers, and why a combination is left out; pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.faults.fault import Fault, Peers, Phase, Side
from harness.faults.table import CONFIGURATION, FAULTS, PROCESSES


@dataclass(frozen=True)
class Cell:
    fault: Fault
    phase: Phase
    side: Side
    peers: Peers

    @property
    def strikes_every_peer(self) -> bool:
        """Whether the second decode's request is in the same trouble."""
        return self.peers is Peers.SEVERAL and self.side is Side.PREFILL and self.fault in PROCESSES

    @property
    def spares_a_peer(self) -> bool:
        return self.peers is Peers.SEVERAL and not self.strikes_every_peer

    def __str__(self) -> str:
        return f"{self.fault.name} / {self.phase} / {self.side} / {self.peers}"


@dataclass(frozen=True)
class LeftOut:
    cell: Cell
    why: str


# What no row of the table says of itself.
EXCEPTIONS: tuple[tuple[Callable[[Cell], bool], str], ...] = (
    (
        lambda cell: cell.fault.name == "abort" and cell.phase is Phase.ABORTING and cell.side is Side.DECODE,
        "decode's abort is what made the phase",
    ),
    (
        lambda cell: cell.fault in CONFIGURATION and cell.side is Side.PREFILL and cell.peers is Peers.SEVERAL,
        "every decode differs from prefill then; none is left untouched",
    ),
)


def product() -> Iterator[Cell | LeftOut]:
    """Every combination, in the order of the tables."""
    for fault, phase, side, peers in itertools.product(FAULTS, Phase, Side, Peers):
        cell = Cell(fault, phase, side, peers)
        if phase not in fault.phases or side not in fault.sides or peers not in fault.peers:
            yield LeftOut(cell, fault.elsewhere)
            continue
        why = next((why for applies, why in EXCEPTIONS if applies(cell)), None)
        yield cell if why is None else LeftOut(cell, why)


def cells() -> list[Cell]:
    return [one for one in product() if isinstance(one, Cell)]


def left_out() -> list[LeftOut]:
    return [one for one in product() if isinstance(one, LeftOut)]
