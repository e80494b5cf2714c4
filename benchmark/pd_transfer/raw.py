"""Raw NIXL: a room's descriptors between two agents, prepared once, without a manager: what is left is NIXL's cost."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.roles import HOST, RoleSpec
from pd_transfer import geometry
from pd_transfer.geometry import PAGE_BYTES, REGIONS, Cell, buffers, stamps
from pd_transfer.running import Background, LoadError, Run, cpu_seconds


@dataclass(frozen=True)
class RawSpec(RoleSpec):
    """One of the two agents; their progress threads wait for events, as with our classes on a CPU."""

    cell: Cell = geometry.SMALLEST

    def build(self) -> Any:
        return RawAgent(self)


class RawAgent(Background):
    """Prefill's agent writes rooms into decode's memory. The methods are called over a pipe."""

    def __init__(self, spec: RawSpec) -> None:
        os.environ.update(spec.environment)
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

        from sglang.srt.disaggregation.reliable import progress

        progress.wait_for_events()
        cell = spec.cell
        self.spec = spec
        self.slots = cell.slots(spec.mode == "decode")
        self.kv, self._words = buffers(cell.pool)
        self._words[:] = 1
        self._numbers = itertools.count(2)
        self._stamps = stamps(self.slots, cell.pool)
        self.aux = np.zeros((cell.in_flight, geometry.AUX_BYTES), np.uint8)
        # As upstream's manager makes its own.
        config = nixl_agent_config(
            backends=["UCX"],
            num_threads=8 if spec.mode == "prefill" else 0,
            sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
        )
        self.agent = nixl_agent(spec.mode, config)
        memory = [(buffer.ctypes.data, buffer.nbytes, 0, "") for buffer in [*self.kv, self.aux]]
        self.agent.register_memory(memory, "DRAM")

    def info(self) -> dict[str, Any]:
        return {
            "ip": HOST,
            "port": 0,
            "metadata": self.agent.get_agent_metadata(),
            "runs": self._runs(),
        }

    def _runs(self) -> np.ndarray:
        """Strided descriptors of every page in every region, then of every auxiliary slot; see NIXL's Nx5 arrays."""
        cell = self.spec.cell
        pages = [(buffer.ctypes.data, PAGE_BYTES, 0, PAGE_BYTES, cell.pool) for buffer in self.kv]
        aux = (self.aux.ctypes.data, geometry.AUX_BYTES, 0, geometry.AUX_BYTES, cell.in_flight)
        return np.array([*pages, aux], np.uint64)

    def connect(self, decode: dict[str, Any]) -> None:
        name = self.agent.add_remote_agent(decode["metadata"])
        if isinstance(name, bytes):
            name = name.decode()
        self._local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._runs(), "DRAM")
        self._remote = self.agent.prep_xfer_dlist(name, decode["runs"], "DRAM")
        cell = self.spec.cell
        self._here = [_indices(cell, pages, slot) for slot, pages in enumerate(self.slots)]
        self._there = [_indices(cell, pages, slot) for slot, pages in enumerate(cell.slots(1))]

    def begin(self, rooms: int, in_flight: int) -> None:
        """Start writing ``rooms`` rooms, at most ``in_flight`` of them at a time."""
        self.start(lambda: self._write(rooms, in_flight))

    def _write(self, rooms: int, in_flight: int) -> Run:
        free, live = deque(range(in_flight)), dict[int, tuple[Any, float]]()
        seconds, posted, rounds = list[float](), 0, 0
        cpu, start = cpu_seconds(), time.monotonic()
        while len(seconds) < rooms:
            rounds += 1
            while free and posted < rooms:
                slot, opened = free.popleft(), time.monotonic()
                posted += 1
                self._words[self._stamps[slot]] = next(self._numbers)
                handle = self.agent.make_prepped_xfer(
                    "WRITE", self._local, self._here[slot], self._remote, self._there[slot]
                )
                if self.agent.transfer(handle) == "ERR":
                    raise LoadError("NIXL refused a write")
                live[slot] = (handle, opened)
            for slot, (handle, opened) in list(live.items()):
                state = self.agent.check_xfer_state(handle)
                if state == "PROC":
                    continue
                if state == "ERR":
                    raise LoadError("NIXL reports that a write failed")
                self.agent.release_xfer_handle(handle)
                seconds.append(time.monotonic() - opened)
                free.append(slot)
                del live[slot]
        return Run(time.monotonic() - start, cpu_seconds() - cpu, rounds, seconds)

    def cpu(self) -> float:
        return cpu_seconds()

    def stamped(self) -> list[list[int]]:
        """The stamps that every slot's pages hold, each once: one after a room, the same on both sides."""
        return [sorted({int(stamp) for stamp in self._words[of_slot]}) for of_slot in self._stamps]


def _indices(cell: Cell, pages: np.ndarray, slot: int) -> np.ndarray:
    """A room's descriptors among those of :meth:`RawAgent._runs`."""
    regions = np.arange(REGIONS, dtype=np.int32)[:, None] * cell.pool
    return np.append((regions + pages).reshape(-1), REGIONS * cell.pool + slot).astype(np.int32)
