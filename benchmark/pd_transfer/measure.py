"""Samples: pairs that are warmed up, measured in turn, verified, and gone again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from harness.managers import Nursery, RoleProcess
from pd_transfer.geometry import SMALLEST, Cell
from pd_transfer.pairs import TRANSPORTS, Pair, closing, pair, results
from pd_transfer.raw import RawSpec
from pd_transfer.running import Run

# How long a pair at rest is watched before each sample, in seconds: it shows whether its progress threads spin.
REST_S = 0.2
# A sample is cut into bursts of at least so many rooms per slot: each begins with all slots at once and ends with few.
MOST_BURSTS, ROOMS_PER_SLOT = 5, 4


@dataclass(frozen=True)
class Size:
    """How much a sample measures: ``rooms``, or as many as fit into ``seconds`` at the rate of its warm-up."""

    seconds: float
    rooms: int | None = None

    def warm_up(self, run: Callable[[int], Run], in_flight: int) -> int:
        """Run some rooms to connect, and more until their rate is known; returns how many to measure, at least two per
        slot: the first of each all start at once."""
        rooms = max(16, in_flight)
        run(rooms)
        warm = run(rooms)
        while warm.wall_s < self.seconds / 4:
            rooms *= 4
            warm = run(rooms)
        return self.rooms or max(2 * in_flight, 16, int(rooms / warm.wall_s * self.seconds))


@dataclass(frozen=True)
class Sample:
    """``p50_s`` and ``p99_s``: a room's seconds, on decode. ``*_cpu_s``: CPU seconds per room, of all threads of the
    process. ``resting_cores``: cores that both processes use when they have nothing to do. ``rounds``: of decode's
    loop. ``verified_bytes``: compared byte by byte at the end."""

    rooms: int
    wall_s: float
    rooms_per_s: float
    mb_per_s: float
    p50_s: float
    p99_s: float
    prefill_cpu_s: float
    decode_cpu_s: float
    resting_cores: float
    verified_bytes: int
    rounds: int

    def row(self) -> dict[str, Any]:
        return asdict(self)


def samples(
    nursery: Nursery, sides: Iterable[str], transport: str, cell: Cell, size: Size, idle_s: float
) -> dict[str, Sample]:
    """A sample of each side, every room verified, in short bursts in turn: what else the machine does meets all alike.

    A side's pair is paused while another's is measured. Raises ``RuntimeError`` for a room that failed or arrived
    damaged.
    """
    with ExitStack() as stack:
        pairs, rooms, resting = dict[str, Pair](), dict[str, int](), dict[str, float]()
        for side in sides:
            one = pairs[side] = stack.enter_context(pair(nursery, side, transport, cell, idle_s))
            rooms[side] = size.warm_up(_arrivals(one), cell.in_flight)
            resting[side] = _resting_cores(one.prefill, one.decode)
            one.pause()
        bursts = max(1, min(MOST_BURSTS, min(rooms.values()) // (ROOMS_PER_SLOT * cell.in_flight)))
        runs: dict[str, list[tuple[Run, Run]]] = {side: [] for side in pairs}
        verified = dict.fromkeys(pairs, 0)
        for _ in range(bursts):
            for side, one in pairs.items():
                one.resume()
                runs[side].append(one.run(-(-rooms[side] // bursts)))
                verified[side] += one.verify()
                one.pause()
    found = {}
    for side in pairs:
        sent, arrived = (Run.joined(each) for each in zip(*runs[side], strict=True))
        found[side] = _sample(cell, sent, arrived, resting[side], verified[side])
    return found


def raw_samples(nursery: Nursery, transport: str, cell: Cell, size: Size) -> dict[int, Sample]:
    """The same rooms through two NIXL agents alone, by rooms in flight: one after the other, and as in the cell."""
    with closing() as roles:
        for mode in ("prefill", "decode"):
            roles.append(nursery.start(RawSpec(mode, 0, TRANSPORTS[transport], cell=cell)))
        prefill, decode = roles
        prefill.call("connect", decode.info)
        return {
            in_flight: _raw_sample(prefill, decode, cell, size, in_flight) for in_flight in sorted({1, cell.in_flight})
        }


def _raw_sample(prefill: RoleProcess, decode: RoleProcess, cell: Cell, size: Size, in_flight: int) -> Sample:
    def write(rooms: int) -> Run:
        prefill.call("begin", rooms, in_flight)
        return results(prefill)[0]

    rooms = size.warm_up(write, in_flight)
    resting = _resting_cores(prefill, decode)
    cpu = decode.call("cpu")
    sent = write(rooms)
    arrived = Run(sent.wall_s, decode.call("cpu") - cpu, sent.rounds, sent.seconds)
    if prefill.call("stamped")[:in_flight] != decode.call("stamped")[:in_flight]:
        raise RuntimeError("raw NIXL says that a room has arrived, and not all of its pages have")
    return _sample(cell, sent, arrived, resting, 0)


def idle(nursery: Nursery, side: str, transport: str, seconds: float, idle_s: float) -> dict[str, float]:
    """CPU seconds that each role of a pair which has nothing to do takes in ``seconds``."""
    with pair(nursery, side, transport, SMALLEST, idle_s) as one:
        one.run(16)
        before = {role: role.call("cpu") for role in (one.prefill, one.decode)}
        time.sleep(seconds)
        return {role.spec.mode: role.call("cpu") - used for role, used in before.items()}


def _arrivals(one: Pair) -> Callable[[int], Run]:
    return lambda rooms: one.run(rooms)[1]


def _resting_cores(*roles: RoleProcess) -> float:
    before, start = sum(role.call("cpu") for role in roles), time.monotonic()
    time.sleep(REST_S)
    return (sum(role.call("cpu") for role in roles) - before) / (time.monotonic() - start)


def _sample(cell: Cell, sent: Run, arrived: Run, resting: float, verified: int) -> Sample:
    rooms = len(arrived.seconds)
    percentiles = statistics.quantiles(arrived.seconds, n=100, method="inclusive")
    return Sample(
        rooms=rooms,
        wall_s=arrived.wall_s,
        rooms_per_s=rooms / arrived.wall_s,
        mb_per_s=rooms * cell.room_bytes / arrived.wall_s / 1e6,
        p50_s=percentiles[49],
        p99_s=percentiles[98],
        prefill_cpu_s=sent.cpu_s / rooms,
        decode_cpu_s=arrived.cpu_s / rooms,
        resting_cores=resting,
        verified_bytes=verified,
        rounds=arrived.rounds,
    )
