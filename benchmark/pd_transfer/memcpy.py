"""memcpy of a room's bytes inside one process: the ceiling that memory sets."""

from __future__ import annotations

import time

import numpy as np

from pd_transfer import geometry
from pd_transfer.geometry import Cell, buffers


def megabytes_per_second(cell: Cell, seconds: float = 0.5) -> dict[str, float]:
    """MB/s (10^6 bytes) of copying rooms for ``seconds`` each way: "contiguous" is one block of a room's size,
    "by page" numpy's gather of a room's pages from every region into such a block and its scatter to other pages."""
    source, _ = buffers(cell.pool)
    target, _ = buffers(cell.pool)
    for buffer in (*source, *target):
        buffer[:] = 1
    room = np.ones((len(source), cell.pages, geometry.PAGE_BYTES), np.uint8)
    other = np.ones_like(room)
    here, there = cell.slots(0), cell.slots(1)

    def contiguous(slot: int) -> None:
        np.copyto(other, room)

    def by_page(slot: int) -> None:
        for region, (read, written) in enumerate(zip(source, target, strict=True)):
            np.take(read, here[slot], axis=0, out=room[region], mode="clip")
            written[there[slot]] = room[region]

    found = {}
    for name, copy in (("contiguous", contiguous), ("by page", by_page)):
        rooms, start = 0, time.monotonic()
        while (spent := time.monotonic() - start) < seconds:
            copy(rooms % cell.in_flight)
            rooms += 1
        found[name] = rooms * room.nbytes / spent / 1e6
    return found
