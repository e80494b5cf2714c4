"""The device that the checker imagines: streams, their order, and every use of memory.

An operation is launched on a stream and happens after what that stream, at that moment, is known to follow: its own
earlier operations, what it was made to wait for, and what the host had seen finished. Two uses of the same bytes, one
of them a write, must happen one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sgl_kernel_sm120.streamcheck.allocator import Allocator
from sgl_kernel_sm120.streamcheck.buffers import Access, Buffer
from sgl_kernel_sm120.streamcheck.clock import Clock, covers, join
from sgl_kernel_sm120.streamcheck.findings import Finding, Kind
from sgl_kernel_sm120.streamcheck.fixes import fix_of_race, fix_of_reuse
from sgl_kernel_sm120.streamcheck.graph import Edge, Graph, Lane, Operation, Use
from sgl_kernel_sm120.streamcheck.source import Site, Sites

EAGER_POOL = "eager"


class Machine:
    """Streams, memory and findings. ``focus``: see :class:`Sites`."""

    def __init__(self, focus: tuple[str, ...] = ()):
        self.sites = Sites(focus)
        self.lanes: list[Lane] = []
        self.host: Clock = {}
        self.allocator = Allocator()
        self.buffers: dict[int, Buffer] = {}
        self.findings: list[Finding] = []
        self.log: list[Operation | Edge] = []
        self.graph: Graph | None = None  # being captured
        self.program = ""  # see Graph
        self._keys: set[tuple[object, ...]] = set()
        self._count = 0
        self.main = self.stream("main")
        self.current = self.main

    def stream(self, name: str, of: str = "") -> Lane:
        """A new stream; ``of``: the graph in whose replays it stands for the stream ``name`` of the capture."""
        lane = Lane(len(self.lanes), f"{name} of {of}" if of else name, name)
        self.lanes.append(lane)
        return lane

    # Memory

    def buffer_of(self, tensor: torch.Tensor) -> Buffer:
        """The buffer of a tensor's storage; one that is seen for the first time was there before."""
        found = self.buffers.get(torch._C._storage_id(tensor))
        return found if found is not None and found.alive else self._adopt(tensor, None)

    def known(self, tensor: torch.Tensor) -> bool:
        found = self.buffers.get(torch._C._storage_id(tensor))
        return found is not None and found.alive

    def allocated(self, tensor: torch.Tensor, inside_kernel: bool = False) -> Buffer:
        """``tensor`` got memory from the allocator, on the current stream."""
        buffer = self._adopt(tensor, self.current)
        buffer.inside_kernel = inside_kernel
        return buffer

    def label(self, tensor: torch.Tensor, name: str) -> None:
        """Give a tensor's memory a name in reports."""
        buffer = self.buffer_of(tensor)
        buffer.label = buffer.label or name

    def shared(self, name: str) -> Buffer:
        """Memory that no tensor shows, as a library's workspace: one buffer per name, for the life of the process."""
        found = next((one for one in self.buffers.values() if one.ref is None and one.label == name), None)
        if found is None:
            self._count += 1
            found = Buffer(self._count, 0, "not a tensor", None, EAGER_POOL, (), None, label=name)
            self.buffers[-self._count] = found
        return found

    def record_stream(self, tensor: torch.Tensor, lane: Lane) -> None:
        self.buffer_of(tensor).recorded.add(lane.number)

    def reap(self) -> None:
        """Notice what the host has released since the last operation."""
        for key, buffer in list(self.buffers.items()):
            if buffer.ref is not None and buffer.ref.expired():
                buffer.alive = False
                buffer.released_after = self.log[-1].site if self.log else ()
                buffer.ref = None
                del self.buffers[key]
                if not buffer.inside_kernel:
                    self.allocator.release(buffer)

    def _adopt(self, tensor: torch.Tensor, home: Lane | None) -> Buffer:
        self.reap()
        storage = tensor.untyped_storage()
        graph = home.graph if home else None
        self._count += 1
        buffer = Buffer(
            number=self._count,
            size=storage.nbytes(),
            shape=f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
            home=home.number if home else None,
            pool=graph.pool if graph else EAGER_POOL,
            site=self.sites.here() if home else (),
            ref=StorageWeakRef(storage),
            capture=graph.name if graph else "",
            program=graph.program if graph else "",
        )
        self.buffers[torch._C._storage_id(tensor)] = buffer
        self.allocator.allocate(buffer)
        return buffer

    # Order

    def launch(self, name: str, uses: Iterable[Use], overlaps_previous: bool = False) -> Operation:
        """An operation on the current stream. ``overlaps_previous``: it may start before the one before it is over, and
        waits for that one itself; its early reads do not."""
        self.reap()
        lane, site = self.current, self.sites.here()
        if self.graph is not None and lane.graph is None:
            self.report(
                Finding(
                    Kind.OUTSIDE, None, f"{name} on stream {lane.name} is not part of the capture of {self.graph.name}",
                    f"let {lane.name} wait for an event of a stream that is being captured before it",
                    streams=(lane.name,), site=site,
                )
            )  # fmt: skip
        if lane.graph is None:
            join(lane.clock, self.host)
        early = lane.before if overlaps_previous else lane.clock
        operation = Operation(name, lane, lane.tick + 1, dict(lane.clock), tuple(uses), site)
        for use in operation.uses:
            access = Access(lane.number, operation.tick, use.write, use.span, name, site, use.early)
            self.check(use.buffer, access, early if use.early else operation.follows)
            self._check_owner(use.buffer, access, lane.graph)
        lane.before = operation.follows
        lane.clock[lane.number] = operation.tick
        self.log.append(operation)
        if lane.graph is not None:
            lane.graph.operations.append(operation)
            lane.graph.entries.append(operation)
        return operation

    def check(self, buffer: Buffer, access: Access, follows: Clock) -> None:
        """Compare a use with every earlier one of the same memory, then note it."""
        ordered = True
        for before in buffer.accesses.values():
            one = (before.stream, before.tick) == (access.stream, access.tick)
            if not one and (before.write or access.write) and before.span.overlaps(access.span):
                ordered &= self._compare(buffer, before, access, follows)
        under = buffer.under
        if under is not None and ordered:
            for (stream, write), latest in under.latest.items():
                if (write or access.write) and stream != access.stream and not covers(follows, stream, latest.tick):
                    self._reused(buffer, access, follows)
                    break
        buffer.accesses[access.stream, access.write, access.span, access.early] = access

    def _check_owner(self, buffer: Buffer, access: Access, graph: Graph | None) -> None:
        """Memory of one capture is for that graph alone, unless it was kept on purpose."""
        if not buffer.capture or buffer.capture == (graph.name if graph else "") or buffer.is_output:
            return
        if self.graph is not None and graph is None:  # reported as an operation outside of the capture
            return
        if self.program and buffer.program == self.program:
            return
        user = graph.name if graph else "work outside of graphs"
        self.report(
            Finding(
                Kind.LAZY,
                buffer,
                f"it was allocated while {buffer.capture} was being captured and is used by {user}, which finds there "
                f"what the last replay of {buffer.capture} left",
                f"allocate {buffer.name()} before the first capture",
                second=access,
                streams=("", *self._names(access)),
                site=buffer.site,
            )
        )

    def _compare(self, buffer: Buffer, before: Access, access: Access, follows: Clock) -> bool:
        if covers(follows, before.stream, before.tick):
            return True
        names = self._names(before, access)
        missing = f"{names[1]} does not wait for {before.operation} on {names[0]}"
        fix = fix_of_race(self, buffer, before, access)
        self.report(Finding(Kind.RACE, buffer, missing, fix, before, access, streams=names))
        return False

    def _names(self, *accesses: Access) -> tuple[str, ...]:
        return tuple(self.lanes[access.stream].captured_as for access in accesses)

    def _reused(self, buffer: Buffer, access: Access, follows: Clock) -> None:
        """``buffer`` may lie where something was that is still in use: find what, the latest first."""
        for old in reversed(buffer.under.released.buffers[: buffer.under.count]):
            for before in old.accesses.values():
                if before.stream in old.recorded or not (before.write or access.write):
                    continue
                if covers(follows, before.stream, before.tick):
                    continue
                names = self._names(before, access)
                missing = f"{names[1]} does not wait for {before.operation} on {names[0]}"
                fix = fix_of_reuse(self, old, before, access)
                self.report(Finding(Kind.REUSE, old, missing, fix, before, access, buffer, names))
                return

    def wait(self, waiting: Lane, awaited: Lane, clock: Clock, graph: Graph | None) -> None:
        """``waiting`` waits for an event that was recorded on ``awaited`` with ``clock``, in ``graph`` if any."""
        site = self.sites.here()
        if graph is None and waiting.graph is not None:
            self._illegal(
                f"stream {waiting.name} is being captured and waits for an event from before the capture", site
            )
            return
        if graph is not None and waiting.graph is None:
            if graph is not self.graph:
                self._illegal(f"stream {waiting.name} waits for an event of a capture that has ended", site)
                return
            graph.add(waiting)
        join(waiting.clock, clock)
        waiting.before = dict(waiting.clock)
        tick = clock.get(awaited.number, 0)
        edge = Edge(waiting, awaited, tick, waiting.tick, dict(waiting.clock), site)
        self.log.append(edge)
        if waiting.graph is not None:
            waiting.graph.entries.append(edge)

    def synchronize(self, clock: Clock, what: str) -> None:
        """The host waits until what ``clock`` knows is over. In a graph there is no host."""
        if self.graph is not None:
            self._illegal(f"{what} while {self.graph.name} is being captured", self.sites.here())
            return
        join(self.host, clock)

    def synchronize_all(self) -> None:
        for lane in self.lanes:
            join(self.host, lane.clock)

    # Findings

    def report(self, finding: Finding) -> None:
        if finding.key not in self._keys:
            self._keys.add(finding.key)
            self.findings.append(finding)

    def _illegal(self, what: str, site: Site) -> None:
        self.report(Finding(Kind.ILLEGAL, None, what, "record what is waited for inside the capture", site=site))
