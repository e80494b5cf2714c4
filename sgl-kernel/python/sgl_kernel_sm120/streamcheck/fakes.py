"""Stand-ins for ``torch.cuda``'s streams, events and graphs, that note order on a :class:`Machine`."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from sgl_kernel_sm120.streamcheck import capture
from sgl_kernel_sm120.streamcheck.clock import Clock
from sgl_kernel_sm120.streamcheck.graph import Graph, Lane
from sgl_kernel_sm120.streamcheck.machine import Machine


class FakeStream:
    """``torch.cuda.Stream``."""

    machine: Machine

    def __init__(self, device: Any = None, priority: int = 0, *, name: str = "", lane: Lane | None = None):
        self.lane = lane or self.machine.stream(name or f"stream {len(self.machine.lanes)}")
        self.cuda_stream = self.stream_id = self.lane.number
        self.device = torch.device("cpu")

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or type(self)._event()
        event.record(self)
        return event

    @classmethod
    def _event(cls) -> FakeEvent:
        return FakeEvent()

    def wait_event(self, event: FakeEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.machine.synchronize(self.lane.clock, f"the host waits for stream {self.lane.name}")

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.lane is self.lane

    def __hash__(self) -> int:
        return hash(self.lane.number)

    def __enter__(self) -> FakeStream:
        self._outer, self.machine.current = self.machine.current, self.lane
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.current = self._outer


class FakeEvent:
    """``torch.cuda.Event``. One that was never recorded orders nothing, as CUDA's."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        self._lane: Lane | None = None
        self._clock: Clock = {}
        self._graph: Graph | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        lane = (stream or current_stream()).lane
        self._lane, self._clock, self._graph = lane, dict(lane.clock), lane.graph

    def wait(self, stream: FakeStream | None = None) -> None:
        if self._lane is not None:
            stream = stream or current_stream()
            stream.machine.wait(stream.lane, self._lane, self._clock, self._graph)

    def synchronize(self) -> None:
        FakeStream.machine.synchronize(self._clock, "the host waits for an event")

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: FakeEvent) -> float:
        return 0.0


class FakeGraph:
    """``torch.cuda.CUDAGraph``. ``outputs``: set by who keeps tensors of the capture on purpose."""

    _names = itertools.count()

    def __init__(self, keep_graph: bool = False, *, name: str = ""):
        self.name = name or f"graph {next(self._names)}"
        self.graph: Graph | None = None
        self._pool = f"pool of {self.name}"

    def pool(self) -> str:
        return self._pool

    def capture_begin(self, pool: str | None = None, capture_error_mode: str = "global") -> None:
        self._pool = pool or self._pool
        capture.begin(FakeStream.machine, self.name, self._pool)

    def capture_end(self, outputs: tuple[torch.Tensor, ...] = ()) -> None:
        self.graph = capture.end(FakeStream.machine, outputs)

    def replay(self) -> None:
        if self.graph is None:
            raise RuntimeError(f"{self.name} was not captured")
        _replays().replay(self.graph)

    def reset(self) -> None:
        self.graph = None


@contextlib.contextmanager
def graph(
    cuda_graph: FakeGraph, pool: str | None = None, stream: FakeStream | None = None, **_: Any
) -> Iterator[list[torch.Tensor]]:
    """``torch.cuda.graph``. What is put in the list that it gives is meant to outlive the capture."""
    outputs: list[torch.Tensor] = []
    with stream or FakeStream(name=f"capture of {cuda_graph.name}"):
        FakeStream.machine.synchronize_all()  # as PyTorch does
        cuda_graph.capture_begin(pool)
        try:
            yield outputs
        finally:
            cuda_graph.capture_end(tuple(outputs))


def current_stream(device: Any = None) -> FakeStream:
    return FakeStream(lane=FakeStream.machine.current)


def default_stream(device: Any = None) -> FakeStream:
    return FakeStream(lane=FakeStream.machine.main)


def stream(on: FakeStream | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if on is None else on


def set_stream(on: FakeStream) -> None:
    FakeStream.machine.current = on.lane


def is_current_stream_capturing() -> bool:
    return FakeStream.machine.current.graph is not None


def synchronize(device: Any = None) -> None:
    machine = FakeStream.machine
    everything: Clock = {}
    for lane in machine.lanes:
        everything[lane.number] = lane.tick
    machine.synchronize(everything, "the host waits for the device")


def _replays() -> capture.Replays:
    return FakeStream.replays  # type: ignore[attr-defined]


@contextlib.contextmanager
def patched(machine: Machine) -> Iterator[None]:
    """``torch.cuda``'s streams, events and graphs are ``machine``'s."""
    handles = itertools.count()
    with contextlib.ExitStack() as stack:
        for name, fake in {
            "Stream": FakeStream,
            "Event": FakeEvent,
            "CUDAGraph": FakeGraph,
            "graph": graph,
            "current_stream": current_stream,
            "default_stream": default_stream,
            "stream": stream,
            "set_stream": set_stream,
            "synchronize": synchronize,
            "is_current_stream_capturing": is_current_stream_capturing,
            "graph_pool_handle": lambda: f"pool {next(handles)}",
        }.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, fake))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _record_stream))
        stack.enter_context(mock.patch.object(FakeStream, "machine", machine, create=True))
        stack.enter_context(mock.patch.object(FakeStream, "replays", capture.Replays(machine), create=True))
        yield


def _record_stream(tensor: torch.Tensor, on: FakeStream) -> None:
    FakeStream.machine.record_stream(tensor, on.lane)
