"""A decode whose rooms go through upstream's own queue of arriving requests, on a loop as its scheduler runs it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.roles import Role, RoleSpec

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)


@dataclass(frozen=True)
class LoopSpec(RoleSpec):
    """``attempts``: how often upstream's queue asks for a prefill's layout, once a second, before it gives up."""

    attempts: int = 15

    def build(self) -> LoopRole:
        return LoopRole(self)


@dataclass
class _Room:
    request: Any
    pages: list[int]
    sent: bool = False
    submitted: float = field(default_factory=time.monotonic)


class LoopRole(Role):
    def __init__(self, spec: LoopSpec) -> None:
        super().__init__(spec)
        self.spec: LoopSpec = spec
        self._lock = threading.Lock()
        self._arriving: list[_Room] = []
        self._going: list[_Room] = []
        self._ends: dict[int, tuple[int, float, str]] = {}
        self._slowest_s = 0.0
        self._queue = _queue(self.manager, spec.attempts)
        threading.Thread(target=self._run, name="loop", daemon=True).start()

    def submit(self, room: int, address: str, pages: list[int]) -> None:
        """A request for a room whose prefill has its bootstrap server at ``address`` (host:port)."""
        host, _, port = address.partition(":")
        req = _Request(room, host, int(port))
        with self._lock:
            self._arriving.append(_Room(req, pages))

    def abort_room(self, room: int) -> None:
        """The client of the room's request goes away, as soon as the loop has it."""
        while not (found := [one for one in self._going if one.request.req.bootstrap_room == room]):
            time.sleep(0.001)
        found[0].request.kv_receiver.abort()

    def end(self, room: int, timeout_s: float) -> tuple[int, float, str]:
        """Wait until the room has ended: (status, seconds from its arrival, its failure)."""
        deadline = time.monotonic() + timeout_s
        while room not in self._ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"room {room} has not ended")
            time.sleep(0.001)
        return self._ends[room]

    def slowest_step(self) -> float:
        """Seconds of the loop's slowest step since this was asked last."""
        slowest, self._slowest_s = self._slowest_s, 0.0
        return slowest

    def know(self, address: str) -> bool:
        """Ask for a prefill's layout, and wait for it."""
        return self.manager.try_ensure_parallel_info(address)

    def _run(self) -> None:
        while True:
            start = time.monotonic()
            with self._lock:
                arriving, self._arriving = self._arriving, []
            for room in arriving:
                self._arrive(room)
            if self._queue.pending_reqs:
                self._queue.prefetch_prefill_dp_rank_queries()
            self._queue._resolve_pending_reqs()
            self._going = [room for room in self._going if not self._step(room)]
            self._slowest_s = max(self._slowest_s, time.monotonic() - start)
            time.sleep(0.001)

    def _arrive(self, room: _Room) -> None:
        """What upstream's ``DecodePreallocQueue.add`` does with a request that fits."""
        room.request = self._queue._create_receiver_and_enqueue(room.request)
        rank = self._queue._resolve_prefill_dp_rank(room.request.req)
        if rank is None:
            self._queue.pending_reqs.append(room.request)
        else:
            self._queue._init_receiver(room.request, rank)
        self._going.append(room)

    def _step(self, room: _Room) -> bool:
        """Returns whether the room has ended."""
        receiver, number = room.request.kv_receiver, room.request.req.bootstrap_room
        status = int(receiver.poll())
        if status == WAITING and not room.sent:
            receiver.send_metadata(np.array(room.pages, np.int32), number % self.spec.aux_slots)
            room.sent = True
        if status not in (FAILED, SUCCESS):
            return False
        text = ""
        if status == FAILED:
            text = _failure(receiver)
        else:
            receiver.clear()
        self._queue.pending_reqs = [one for one in self._queue.pending_reqs if one is not room.request]
        self._ends[number] = status, time.monotonic() - room.submitted, text
        return True


def _failure(receiver: Any) -> str:
    from sglang.srt.disaggregation.common.conn import KVTransferError

    try:
        receiver.failure_exception()
    except KVTransferError as error:
        return str(error.failure_reason)
    raise AssertionError("the room has not failed")


class _Request:
    """What the queue looks at of upstream's ``Req``."""

    finished_reason = to_finish = disagg_prefill_dp_rank = None

    def __init__(self, room: int, host: str, port: int) -> None:
        self.rid = f"request-{room}"
        self.bootstrap_room, self.bootstrap_host, self.bootstrap_port = room, host, port


def _queue(manager: Any, attempts: int) -> Any:
    """Upstream's queue with what its bootstrapping uses, and no pool."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue
    from sglang.srt.disaggregation.utils import TransferBackend

    queue = DecodePreallocQueue.__new__(DecodePreallocQueue)
    queue.kv_manager = manager
    queue.transfer_backend = TransferBackend.NIXL
    queue.queue, queue.pending_reqs = [], []
    queue._prefill_dp_rank_queries = {}
    queue._ensure_retry_count, queue._ensure_last_attempt_time = {}, {}
    queue._max_ensure_retries, queue._ensure_retry_interval = attempts, 1.0
    queue.scheduler = SimpleNamespace()
    return queue
