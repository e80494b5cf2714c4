"""One role of a PD pair in its own process: the real manager, KV in host memory, no model and no scheduler.

A :class:`Role` offers what a scheduler would do with its manager, one call at a time; the test plays the scheduler.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOST = "127.0.0.1"


@dataclass(frozen=True)
class RoleSpec:
    """``layers`` K and V buffers each of ``pages`` pages of ``page_bytes`` bytes. ``environment`` is set before the
    manager is built; ``SGLANG_PD_RELIABLE`` in it chooses between upstream's classes and ours."""

    mode: str
    bootstrap_port: int
    environment: dict[str, str] = field(default_factory=dict)
    layers: int = 4
    pages: int = 512
    page_bytes: int = 4096
    aux_bytes: int = 64
    aux_slots: int = 256
    page_size: int = 4

    def build(self) -> Any:
        """What serves the calls in the role's process; a spec of another kind builds its own."""
        return Role(self)


class Role:
    """The calls a test makes; every argument and result crosses a pipe. Rooms are named by their number."""

    def __init__(self, spec: RoleSpec):
        os.environ.update(spec.environment)
        from sglang.srt.disaggregation.prefill import get_kv_class
        from sglang.srt.disaggregation.utils import DisaggregationMode, KVClassType, TransferBackend

        def kv_class(kind: KVClassType) -> Any:
            return get_kv_class(TransferBackend.NIXL, kind)

        self.spec = spec
        self.address = f"{HOST}:{spec.bootstrap_port}"
        self.server = None
        server_args = _publish(spec)
        prefill = spec.mode == "prefill"
        if prefill:
            self.server = kv_class(KVClassType.BOOTSTRAP_SERVER)(HOST, spec.bootstrap_port)
            _wait_until_listening(spec.bootstrap_port)
        self.kv = self.allocate()
        self.aux = np.zeros((spec.aux_slots, spec.aux_bytes), np.uint8)
        self.manager = kv_class(KVClassType.MANAGER)(
            _kv_args(spec, self.kv, self.aux), DisaggregationMode(spec.mode), server_args, False
        )
        self.room_class = kv_class(KVClassType.SENDER if prefill else KVClassType.RECEIVER)
        self.rooms: dict[int, Any] = {}

    def allocate(self) -> list[np.ndarray]:
        """The K and V buffers, each (pages, page_bytes) of uint8."""
        return [np.zeros((self.spec.pages, self.spec.page_bytes), np.uint8) for _ in range(2 * self.spec.layers)]

    # What a scheduler does.

    def open(self, room: int) -> None:
        """Create the room's sender or receiver; a receiver also resolves its prefill and registers there."""
        if self.spec.mode == "prefill":
            self.rooms[room] = self.room_class(self.manager, self.address, room)
            return
        if not self.manager.try_ensure_parallel_info(self.address):
            raise RuntimeError(f"no bootstrap information at {self.address}")
        self.rooms[room] = self.room_class(self.manager, self.address, room)
        self.rooms[room].init(0)

    def send_metadata(self, room: int, pages: list[int], slot: int) -> None:
        self.rooms[room].send_metadata(np.array(pages, np.int32), slot)

    def send(self, room: int, pages: list[int], slot: int, chunk: int | None = None) -> None:
        """Send the pages in chunks of ``chunk`` pages, all at once by default."""
        sender = self.rooms[room]
        sender.init(len(pages), slot)
        for start in range(0, len(pages), chunk or len(pages)):
            sender.send(np.array(pages[start : start + (chunk or len(pages))], np.int32))

    def send_part(self, room: int, pages: list[int], first: int) -> None:
        """Send the ``first`` pages of a room that has more."""
        self.rooms[room].init(len(pages), 0)
        self.rooms[room].send(np.array(pages[:first], np.int32))

    def poll(self, room: int) -> int:
        return int(self.rooms[room].poll())

    def wait(self, room: int, statuses: list[int], timeout_s: float) -> tuple[int, float]:
        """Poll until the room has one of the statuses or the time is over: (last status, seconds waited)."""
        start = time.monotonic()
        while True:
            status, waited = self.poll(room), time.monotonic() - start
            if status in statuses or waited > timeout_s:
                return status, waited
            time.sleep(0.001)

    def abort(self, room: int) -> None:
        self.rooms[room].abort()

    def clear(self, room: int) -> None:
        self.rooms.pop(room).clear()

    def failure(self, room: int) -> str:
        """End a failed room as a scheduler does, and return the reason it would report."""
        from sglang.srt.disaggregation.common.conn import KVTransferError

        try:
            self.rooms.pop(room).failure_exception()
        except KVTransferError as error:
            return error.failure_reason
        raise AssertionError(f"room {room} has not failed")

    # What a test looks at.

    def fill(self, pages: list[int], slot: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        for buffer in self.kv:
            buffer[pages] = random.integers(0, 256, (len(pages), self.spec.page_bytes), np.uint8)
        self.aux[slot] = random.integers(0, 256, self.spec.aux_bytes, np.uint8)

    def content(self, pages: list[int], slot: int) -> bytes:
        return b"".join(buffer[pages].tobytes() for buffer in self.kv) + self.aux[slot].tobytes()

    def info(self) -> dict[str, Any]:
        manager = self.manager
        return {
            "pid": os.getpid(),
            "ip": manager.local_ip,
            "port": manager.rank_port,
            "class": type(manager).__name__,
            "agent": manager.agent.name,
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "immortal": sorted(
                thread.name
                for thread in threading.enumerate()
                if not thread.daemon and thread is not threading.main_thread()
            ),
            "rooms": len(manager.request_status),
        }

    def ended(self) -> list[str]:
        """The line of every room that ended last, oldest first, whatever its outcome (our classes only)."""
        from sglang.srt.disaggregation.reliable.report import warning_line

        ledger = self.manager.accounts.ledger
        ledger.check()
        return [warning_line(record) for record in ledger.ended_rooms()]

    def live(self) -> int:
        """Rooms that the ledger holds for live (our classes only)."""
        return sum(self.manager.accounts.ledger.counts().live.values())

    def messages(self) -> dict[tuple[str, str], int]:
        """Control messages counted so far, by kind and result (our classes only)."""
        return self.manager.messages.snapshot()

    def wait_for_message(self, before: dict[tuple[str, str], int], timeout_s: float = 5.0) -> None:
        """Wait until more control messages are counted than ``before`` (our classes only)."""
        deadline = time.monotonic() + timeout_s
        while self.messages() == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no control message within {timeout_s} s")
            time.sleep(0.002)

    def stalls(self) -> dict[str, Any]:
        """What the watchdog says on ``/pd/status`` (our classes only)."""
        from sglang.srt.disaggregation.reliable.status_routes import moment

        return self.manager.watchdog.entry(moment())

    def control(self) -> dict[str, tuple[bool, int]]:
        """Control threads by name: up, restarts so far (our classes only)."""
        return {name: (state.up, state.restarts) for name, state in self.manager.control.states().items()}

    def listen(self) -> int:
        """Answer ``/pd/status``, ``/pd/rooms`` and ``/pd/peers`` as a scheduler rank; returns the loopback port."""
        from sglang.srt.disaggregation.reliable import ready, status_routes
        from sglang.srt.disaggregation.reliable.endpoint import Endpoint

        endpoint = Endpoint()
        watched = ready.watcher(self.manager, threading.enumerate())
        endpoint.routes |= status_routes.routes(self.manager, "tp0", {"tp_rank": 0}, watched, ready.loop_age_s)
        endpoint.start()
        return endpoint.port

    def block(self, seconds: float) -> None:
        """The scheduler's loop comes round, and then keeps the main thread for so long."""
        from sglang.srt.disaggregation.reliable import ready

        ready.loop_turns()
        time.sleep(seconds)

    def spin(self, seconds: float) -> None:
        """The same, by work in Python that never gives the interpreter's lock up by itself."""
        from sglang.srt.disaggregation.reliable import ready

        ready.loop_turns()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(range(1000))

    def turn(self) -> None:
        """The scheduler's loop comes round."""
        from sglang.srt.disaggregation.reliable import ready

        ready.loop_turns()

    def break_control(self) -> None:
        """Make the next control message raise what nobody foresaw, once."""
        control = self.manager._role_control

        def broken(frames: list[bytes]) -> None:
            del control.handle
            raise SystemError("injected")

        control.handle = broken


def _publish(spec: RoleSpec) -> Any:
    """Publish the few settings a manager reads; its ranks are those of an undivided server."""
    from sglang.srt.runtime_context import get_context, get_parallel

    server_args = (
        get_context()
        .override_server_args(
            device="cpu",
            host=HOST,
            page_size=spec.page_size,
            disaggregation_mode=spec.mode,
            disaggregation_transfer_backend="nixl",
            disaggregation_bootstrap_port=spec.bootstrap_port,
        )
        .install()
    )
    get_parallel().override_permanently(
        tp_rank=0,
        pp_rank=0,
        attn_tp_rank=0,
        attn_cp_rank=0,
        attn_dp_rank=0,
        attn_dcp_rank=0,
        dp_rank=None,
        pp_group=None,
    )
    return server_args


def _kv_args(spec: RoleSpec, kv: list[np.ndarray], aux: np.ndarray) -> Any:
    from sglang.srt.disaggregation.base.conn import KVArgs

    from sglang.srt.disaggregation.reliable import host

    args = KVArgs()
    args.engine_rank = args.pp_rank = args.gpu_id = args.prefill_start_layer = 0
    args.prefill_end_layer = spec.layers
    args.system_dp_rank = 0
    args.rust_http_port = None
    args.ib_device = None
    args.page_size = spec.page_size
    args.kv_cache_dtype_str = "uint8"
    args.kv_data_ptrs = [buffer.ctypes.data for buffer in kv]
    args.kv_data_lens = [buffer.nbytes for buffer in kv]
    args.kv_item_lens = [spec.page_bytes] * len(kv)
    args.kv_layer_ids = list(range(spec.layers)) * 2
    args.kv_head_num = args.total_kv_head_num = 1
    args.is_hybrid_mla_backend = False
    args.mla_compression_ratios = None
    args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = [aux.ctypes.data], [aux.nbytes], [spec.aux_bytes]
    args.state_types = []
    args.state_data_ptrs, args.state_data_lens, args.state_item_lens = [], [], []
    args.state_layer_ids, args.state_dim_per_tensor, args.state_slice_outer_counts = [], [], []
    args.state_conv_shard_groups = []
    args.swa_kv_cache_layout = None
    host.prepare(None, args)
    return args


def _wait_until_listening(port: int) -> None:
    import socket

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.01)
    raise TimeoutError(f"the bootstrap server does not listen on {port}")
