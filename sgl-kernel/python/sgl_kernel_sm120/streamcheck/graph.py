"""What a run and a capture consist of: streams, operations and their uses of memory, waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from sgl_kernel_sm120.streamcheck.buffers import Buffer, Span
from sgl_kernel_sm120.streamcheck.clock import Clock
from sgl_kernel_sm120.streamcheck.source import Site

WHOLE = Span(0, 1 << 62)


@dataclass(eq=False)
class Lane:
    """A stream. ``clock``: what its next operation happens after; ``before``: the same without its latest operation,
    from which a launch that does not wait for that one starts. ``graph``: the capture that it takes part in.
    ``captured_as``: its name, in a replay that of the stream that was captured."""

    number: int
    name: str
    captured_as: str = ""
    clock: Clock = field(default_factory=dict)
    before: Clock = field(default_factory=dict)
    graph: Graph | None = None

    @property
    def tick(self) -> int:
        return self.clock.get(self.number, 0)


@dataclass(frozen=True)
class Use:
    """A buffer's use by an operation that is about to be launched."""

    buffer: Buffer
    write: bool
    span: Span = WHOLE
    early: bool = False


@dataclass(frozen=True)
class Operation:
    """One launched operation, for reports, diagrams and replays. ``follows``: its clock."""

    name: str
    lane: Lane
    tick: int
    follows: Clock
    uses: tuple[Use, ...]
    site: Site


@dataclass(frozen=True)
class Edge:
    """``waiting`` was made to wait for ``tick`` operations of ``awaited``, after ``at`` operations of its own."""

    waiting: Lane
    awaited: Lane
    tick: int
    at: int
    clock: Clock
    site: Site


@dataclass(eq=False)
class Graph:
    """A captured graph.

    ``start``: clock of its first operations. ``program``: what else may use its memory, by name: an eager part between
    graphs of one forward, and those graphs. ``operations``: in the order of their launches; ``entries``: waits among
    them. ``lanes``: its streams, the one it was started on first; ``before``: their clocks outside of the capture.
    """

    name: str
    pool: str
    start: Clock
    program: str = ""
    before: dict[int, Clock] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    entries: list[Operation | Edge] = field(default_factory=list)

    def add(self, lane: Lane) -> None:
        """A stream becomes part of the capture."""
        self.before[lane.number] = lane.clock
        lane.clock, lane.graph = dict(self.start), self
        self.lanes.append(lane)
