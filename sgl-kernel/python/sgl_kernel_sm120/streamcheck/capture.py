"""Capture and replay.

A capture launches nothing: its operations become the nodes of a graph, and of all order between them only what streams
and events say becomes edges. A replay runs the nodes after the stream it is launched on, which then waits for all of
them. What the host did between the launches is not repeated: neither its waits nor its releases of memory.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import torch

from sgl_kernel_sm120.streamcheck.buffers import Access
from sgl_kernel_sm120.streamcheck.clock import Clock, covers, join
from sgl_kernel_sm120.streamcheck.findings import Finding, Kind
from sgl_kernel_sm120.streamcheck.graph import Graph, Lane, Operation
from sgl_kernel_sm120.streamcheck.machine import Machine


def begin(machine: Machine, name: str, pool: str) -> Graph:
    """Start to capture on the current stream. What was launched before takes no part: it runs now, the graph later."""
    gc.collect()
    machine.reap()
    start: Clock = {}
    for lane in machine.lanes:
        join(start, lane.clock)
    join(start, machine.host)
    graph = Graph(name, pool, start, machine.program)
    machine.graph = graph
    graph.add(machine.current)
    return graph


def end(machine: Machine, outputs: tuple[torch.Tensor, ...] = ()) -> Graph:
    """End the capture. ``outputs``: what the caller keeps of the graph's memory on purpose.

    What else was allocated in it is for this graph alone; the machine reports any other use.
    """
    graph = machine.graph
    if graph is None:
        raise RuntimeError("no capture is under way")
    gc.collect()
    machine.reap()
    origin = graph.lanes[0]
    for lane in graph.lanes[1:]:
        if not covers(origin.clock, lane.number, lane.tick):
            machine.report(_unjoined(graph, origin, lane))
    for tensor in outputs:
        machine.buffer_of(tensor).is_output = True
    for lane in graph.lanes:
        # Nothing that comes later is in conflict with the capture itself, which ran nothing.
        join(machine.host, {lane.number: lane.tick})
        lane.clock = graph.before.pop(lane.number)
        lane.graph = None
    machine.graph = None
    return graph


def _unjoined(graph: Graph, origin: Lane, lane: Lane) -> Finding:
    last = next((one for one in reversed(graph.operations) if one.lane is lane), None)
    return Finding(
        Kind.UNJOINED, None,
        f"{graph.name} ends while {lane.name} has work that {origin.name} does not wait for",
        f"let {origin.name} wait for {lane.name} before the capture ends",
        streams=(lane.name,), site=last.site if last else (),
    )  # fmt: skip


@dataclass
class Replays:
    """Replays of graphs on a machine."""

    machine: Machine
    _lanes: dict[tuple[str, int], Lane] = field(default_factory=dict)
    _ended: dict[str, list[tuple[Graph, Clock, Lane]]] = field(default_factory=dict)

    def replay(self, graph: Graph) -> None:
        """Launch ``graph`` on the current stream."""
        machine, launcher = self.machine, self.machine.current
        join(launcher.clock, machine.host)
        start = dict(launcher.clock)
        self._check_pool(graph, start, launcher)
        lanes = {lane.number: self._lane(graph, lane) for lane in graph.lanes}
        offset = {number: lane.tick - graph.start.get(number, 0) for number, lane in lanes.items()}
        done: Clock = {}
        for operation in graph.operations:
            lane = lanes[operation.lane.number]
            follows = dict(start)
            for number, other in lanes.items():
                tick = operation.follows.get(number, 0)
                if tick > graph.start.get(number, 0):
                    join(follows, {other.number: tick + offset[number]})
            tick = operation.tick + offset[operation.lane.number]
            self._run(graph, operation, lane, tick, follows)
            done[lane.number] = lane.clock[lane.number] = tick
        join(launcher.clock, done)
        launcher.clock[launcher.number] = launcher.tick + 1
        self._ended.setdefault(graph.pool, []).append((graph, done, launcher))

    def _lane(self, graph: Graph, lane: Lane) -> Lane:
        key = (graph.name, lane.number)
        if key not in self._lanes:
            self._lanes[key] = self.machine.stream(lane.name, of=graph.name)
        return self._lanes[key]

    def _run(self, graph: Graph, operation: Operation, lane: Lane, tick: int, follows: Clock) -> None:
        for use in operation.uses:
            if not use.buffer.capture or use.buffer.is_output:
                access = Access(
                    lane.number, tick, use.write, use.span, operation.name, operation.site, replay=graph.name
                )
                self.machine.check(use.buffer, access, follows)

    def _check_pool(self, graph: Graph, start: Clock, launcher: Lane) -> None:
        """All of a pool's memory may be used by each of its graphs."""
        for other, done, on in self._ended.get(graph.pool, ()):
            if all(covers(start, number, tick) for number, tick in done.items()):
                continue
            self.machine.report(
                Finding(
                    Kind.GRAPHS, None,
                    f"{graph.name} is replayed on {launcher.name} while {other.name}, of the same pool, may still "
                    f"run on {on.name}",
                    f"let {launcher.name} wait for {on.name}, or give the graphs pools of their own",
                    streams=(on.name, launcher.name), site=self.machine.sites.here(),
                )
            )  # fmt: skip
