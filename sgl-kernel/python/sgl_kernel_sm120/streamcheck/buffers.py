"""Pieces of device memory, their lifetime, and who touched them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sgl_kernel_sm120.streamcheck.source import Site, innermost


@dataclass(frozen=True)
class Span:
    """The bytes of a storage that a view covers: ``[start, stop)``; of each ``pitch`` bytes only ``[first, last)``.

    ``pitch`` is 0 where the view has no gaps that are worth knowing.
    """

    start: int
    stop: int
    pitch: int = 0
    first: int = 0
    last: int = 0

    def overlaps(self, other: Span) -> bool:
        if self.start >= other.stop or other.start >= self.stop:
            return False
        if self.pitch and self.pitch == other.pitch:
            return self.first < other.last and other.first < self.last
        return True


def span_of(tensor: torch.Tensor) -> Span:
    """The bytes of its storage that ``tensor`` covers."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.numel() == 0:
        return Span(start, start)
    shape, strides = tensor.shape, tensor.stride()
    reach = [(n - 1) * stride * size for n, stride in zip(shape, strides, strict=True)]
    stop = start + sum(reach) + size
    if len(shape) > 1 and shape[0] > 1:
        pitch, row = strides[0] * size, sum(reach[1:]) + size
        if row < pitch and start % pitch + row <= pitch:
            return Span(start, stop, pitch, start % pitch, start % pitch + row)
    return Span(start, stop)


@dataclass(frozen=True)
class Access:
    """One operation's use of a buffer. ``stream``, ``tick``: which operation. ``early``: read before the wait for the
    launch before it (programmatic dependent launch)."""

    stream: int
    tick: int
    write: bool
    span: Span
    operation: str
    site: Site
    early: bool = False
    replay: str = ""

    def __str__(self) -> str:
        verb = "writes" if self.write else "reads"
        return f"{self.operation} {verb} at {innermost(self.site)}"


@dataclass(eq=False)
class Buffer:
    """A storage.

    ``home``: number of the stream it was allocated on, None if it was there before. ``pool``: whose memory it is.
    ``label``: its name, where it was given one. ``capture``: the graph in whose capture it was allocated, ``program``:
    that graph's; ``is_output``: it is meant to outlive the capture. ``recorded``: streams of ``record_stream``.
    ``under``: what lay on its memory before.
    """

    number: int
    size: int
    shape: str
    home: int | None
    pool: str
    site: Site
    ref: StorageWeakRef | None
    label: str = ""
    capture: str = ""
    program: str = ""
    is_output: bool = False
    alive: bool = True
    inside_kernel: bool = False
    released_after: Site = ()
    recorded: set[int] = field(default_factory=set)
    accesses: dict[tuple[int, bool, Span, bool], Access] = field(default_factory=dict)
    under: Any = None

    def name(self) -> str:
        """The label, or the variables that the buffer was assigned to, from the inside out."""
        if self.label:
            return self.label
        targets: list[str] = []
        for line in self.site:
            target = line.target()
            if target and target not in targets:
                targets.append(target)
            if not line.hands_on(target):
                break
        return " / ".join(targets) or f"buffer {self.number}"

    def __str__(self) -> str:
        where = f", allocated at {innermost(self.site)}" if self.site else ""
        return f"{self.name()} ({self.shape}{where})"
