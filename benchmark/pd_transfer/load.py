"""The load, inside a role's process: a closed loop of rooms, as a scheduler's event loop drives its manager."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.roles import Role, RoleSpec
from pd_transfer import geometry
from pd_transfer.geometry import PAGE_BYTES, Cell, buffers, stamps
from pd_transfer.running import Background, LoadError, Run, cpu_seconds

# sglang's KVPoll.
FAILED, WAITING, SUCCESS = 0, 2, 4
# A loop in which no room moves for this long, in seconds, has lost one.
STUCK_S = 60.0


@dataclass(frozen=True)
class LoadSpec(RoleSpec):
    """A role that generates its own load. ``idle_s``: the loop's pause, in seconds, after a round without news."""

    cell: Cell = geometry.SMALLEST
    idle_s: float = 0.0005

    def build(self) -> Any:
        return LoadRole(self)


def load_spec(mode: str, port: int, environment: dict[str, str], cell: Cell, idle_s: float) -> LoadSpec:
    return LoadSpec(
        mode,
        port,
        environment,
        layers=geometry.LAYERS,
        pages=cell.pool,
        page_bytes=PAGE_BYTES,
        aux_bytes=geometry.AUX_BYTES,
        aux_slots=cell.in_flight,
        cell=cell,
        idle_s=idle_s,
    )


class LoadRole(Background, Role):
    """A role whose process plays its scheduler, so that no pipe lies between the load and the manager."""

    spec: LoadSpec

    def __init__(self, spec: LoadSpec) -> None:
        super().__init__(spec)
        self._slots = spec.cell.slots(spec.mode == "decode")
        self._stamps = stamps(self._slots, spec.pages)
        self._aux = self.aux.view(np.uint64)
        self._slot_of: dict[int, int] = {}
        if spec.mode == "prefill":
            pages = np.arange(spec.pages)
            for region, buffer in enumerate(self.kv):
                buffer.view(np.uint64)[:] = geometry.words(region, pages, spec.pages)
        else:
            # Touched now: its first write would otherwise pay for a page fault.
            self._words[:] = 1
        # As upstream's server does after its warm-up: a full collection over what was imported takes a second.
        gc.collect()
        gc.freeze()

    def allocate(self) -> list[np.ndarray]:
        kv, self._words = buffers(self.spec.pages)
        return kv

    def begin(self, first: int, rooms: int) -> None:
        """Start the loop over the rooms ``first`` to ``first + rooms - 1``, in that order on both sides."""
        step = self._prefill_step if self.spec.mode == "prefill" else self._decode_step
        self._slot_of = {}
        self.start(lambda: self._loop(step, first, rooms))

    def cpu(self) -> float:
        return cpu_seconds()

    def slots_of(self, rooms: list[int]) -> list[int]:
        """The slots that these rooms of the last loop had here."""
        return [self._slot_of[room] for room in rooms]

    def last_rooms(self) -> list[int]:
        """The last room of every slot that the last loop used."""
        return sorted({slot: room for room, slot in self._slot_of.items()}.values())

    def verify(self, rooms: list[int], sources: list[int]) -> int:
        """Compare every byte of these rooms with what prefill sent from its slots ``sources``; returns the bytes.

        Raises :class:`LoadError` where they differ.
        """
        here = np.array([self._slot_of[room] for room in rooms])
        there = self.spec.cell.slots(0)[sources]
        stamp = np.repeat(np.array(rooms, np.uint64), self.spec.cell.pages)
        for region, buffer in enumerate(self.kv):
            expected = geometry.words(region, there.reshape(-1), self.spec.pages)
            expected[:, 0] = stamp
            if not np.array_equal(buffer.view(np.uint64)[self._slots[here].reshape(-1)], expected):
                raise LoadError(f"the pages of region {region} are not those that prefill sent")
        return len(rooms) * self.spec.cell.room_bytes

    def _loop(self, step: Callable[[int, _Live], bool], first: int, rooms: int) -> Run:
        """Keep ``in_flight`` rooms open. Every round looks at every live room; one without news ends with a pause."""
        free, live = deque(range(self.spec.cell.in_flight)), dict[int, _Live]()
        coming, seconds, rounds = first, list[float](), 0
        cpu, start = cpu_seconds(), time.monotonic()
        moved = start
        while len(seconds) < rooms:
            rounds += 1
            news = False
            while free and coming < first + rooms:
                slot = free.popleft()
                self._slot_of[coming] = slot
                live[coming] = self._opened(coming, slot)
                coming += 1
                news = True
            for room, entry in list(live.items()):
                news |= step(room, entry)
                if entry.done:
                    seconds.append(time.monotonic() - entry.opened)
                    free.append(entry.slot)
                    del live[room]
            if news:
                moved = time.monotonic()
            elif time.monotonic() - moved > STUCK_S:
                raise LoadError(f"{len(live)} rooms did not move for {STUCK_S:g} s on {self.spec.mode}: {sorted(live)}")
            else:
                time.sleep(self.spec.idle_s)
        return Run(time.monotonic() - start, cpu_seconds() - cpu, rounds, seconds)

    def _opened(self, room: int, slot: int) -> _Live:
        opened = time.monotonic()
        if self.spec.mode == "prefill":
            return _Live(self.room_class(self.manager, self.address, room), slot, opened)
        if not self.manager.try_ensure_parallel_info(self.address):
            raise LoadError(f"no bootstrap information at {self.address}")
        receiver = self.room_class(self.manager, self.address, room)
        receiver.init(0)
        return _Live(receiver, slot, opened)

    def _prefill_step(self, room: int, live: _Live) -> bool:
        """What the scheduler does with a sender, its prompt computed at once."""
        status = live.poll(room)
        if status == WAITING and not live.sent:
            self._words[self._stamps[live.slot]] = room
            self._aux[live.slot] = geometry.aux_words(room)
            live.end.init(self.spec.cell.pages, live.slot)
            live.end.send(self._slots[live.slot])
            live.sent = True
            return True
        if status == SUCCESS:
            live.end.clear()
            live.done = True
        return live.done

    def _decode_step(self, room: int, live: _Live) -> bool:
        """What the scheduler does with a receiver, its pages reserved at once. A room counts as arrived when its
        auxiliary data is there as well, as with upstream's metadata gate."""
        status = live.poll(room)
        if status == WAITING and not live.sent:
            live.end.send_metadata(self._slots[live.slot], live.slot)
            live.sent = True
            return True
        if status == SUCCESS and self._aux[live.slot, 0] == room:
            if not np.array_equal(self._aux[live.slot], geometry.aux_words(room)):
                raise LoadError(f"room {room} arrived with the auxiliary data of another")
            if not (self._words[self._stamps[live.slot]] == room).all():
                raise LoadError(f"room {room} is said to have arrived, and not all of its pages have")
            live.end.clear()
            live.done = True
        return live.done


@dataclass
class _Live:
    end: Any
    slot: int
    opened: float
    sent: bool = False
    done: bool = False

    def poll(self, room: int) -> int:
        status = int(self.end.poll())
        if status == FAILED:
            raise LoadError(f"room {room} failed: {_reason(self.end)}")
        return status


def _reason(end: Any) -> str:
    from sglang.srt.disaggregation.common.conn import KVTransferError

    try:
        end.failure_exception()
    except KVTransferError as error:
        return str(error.failure_reason)
    return "no reason is known"
