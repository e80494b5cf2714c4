"""The caching allocator at its worst.

PyTorch gives a block that the host has released to the next request on the stream it was allocated on, at once: it
takes for granted that the stream's order keeps the old user's work before the new one's. That is so unless another
stream still uses the block. Which request gets which block depends on sizes, and those of a test are not those of a
server. So here every request of a stream may lie on every block that was released on that stream before: a program
without a finding has none for any sizes.

``record_stream`` makes the allocator wait for the streams that were named. Under capture it keeps the block until the
capture has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sgl_kernel_sm120.streamcheck.buffers import Access, Buffer

Latest = dict[tuple[int, bool], Access]


@dataclass
class Released:
    """What was released on one stream of a pool: every buffer, and the latest use by stream and kind."""

    buffers: list[Buffer] = field(default_factory=list)
    latest: Latest = field(default_factory=dict)


@dataclass(frozen=True)
class Under:
    """What may have lain on a new buffer's memory: the first ``count`` buffers of ``released``."""

    released: Released
    count: int
    latest: Latest


class Allocator:
    def __init__(self) -> None:
        self._released: dict[tuple[str, int], Released] = {}

    def allocate(self, buffer: Buffer) -> None:
        """``buffer`` gets memory of its pool on its home stream."""
        if buffer.home is None:
            return
        released = self._released.get((buffer.pool, buffer.home))
        if released is not None:
            buffer.under = Under(released, len(released.buffers), dict(released.latest))

    def release(self, buffer: Buffer) -> None:
        """The host dropped its last reference."""
        if buffer.home is None or (buffer.recorded and buffer.capture):
            return
        released = self._released.setdefault((buffer.pool, buffer.home), Released())
        released.buffers.append(buffer)
        for access in buffer.accesses.values():
            if access.stream in buffer.recorded:
                continue
            key = (access.stream, access.write)
            before = released.latest.get(key)
            if before is None or before.tick < access.tick:
                released.latest[key] = access
