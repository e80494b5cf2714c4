"""The KV manager of either role, on upstream's: supervised control threads, every message parsed, counted, answered."""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar, Protocol

from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.utils import TransferKVChunk
from sglang.srt.disaggregation.nixl.conn import NixlKVManager
from sglang.srt.runtime_context import get_observability

from sglang.srt.disaggregation.reliable import bootstrap_server, configuration, incarnation, wire
from sglang.srt.disaggregation.reliable.accounts import Accounted
from sglang.srt.disaggregation.reliable.bootstrapping import Bootstrapping
from sglang.srt.disaggregation.reliable.control import MessageCounters, Result, Supervisor, worth_a_line
from sglang.srt.disaggregation.reliable.counts import Reconnects
from sglang.srt.disaggregation.reliable.decode import DecodeControl
from sglang.srt.disaggregation.reliable.heartbeats import beat_for_ever
from sglang.srt.disaggregation.reliable.holding import Holding
from sglang.srt.disaggregation.reliable.metrics import Metrics, publish
from sglang.srt.disaggregation.reliable.outbox import Outbox
from sglang.srt.disaggregation.reliable.prefill import PrefillControl
from sglang.srt.disaggregation.reliable.pulse import Pulse, listen_for_ever
from sglang.srt.disaggregation.reliable.reminders import remind_for_ever
from sglang.srt.disaggregation.reliable.transport import Transport
from sglang.srt.disaggregation.reliable.watch import Watch
from sglang.srt.disaggregation.reliable.watchdog_thread import THREAD as WATCHDOG
from sglang.srt.disaggregation.reliable.watchdog_thread import Watchdog
from sglang_pd.environ import envs

logger = logging.getLogger(__name__)


class Control(Protocol):
    """What one role does with its control messages."""

    thread: ClassVar[str]

    def handle(self, frames: list[bytes]) -> tuple[str, Result]:
        """Act on a message; returns its kind and what became of it. Raises ``wire.ParseError``."""

    def stamped(self, address: str, frames: list[bytes]) -> list[bytes]:
        """A message of upstream's to ``address``, with our stamp where one may be added."""

    def peers_of_ours(self) -> dict[str, bool]:
        """The addresses of peers that answer a ping; for each, whether it is an IPv6 one."""

    def silent(self, address: str, text: str) -> None:
        """The process at ``address`` does not answer; ``text`` says so. Called again as long as it does not."""

    def lost(self, address: str, since: float) -> None:
        """The process that listened at ``address`` (``tcp://host:port``) is gone, ``since`` a monotonic time."""


class ReliableKVManager(Bootstrapping, Holding, Accounted, NixlKVManager):
    """``messages`` counts control messages, ``control`` holds the states of the control threads, ``accounts`` keeps the
    rooms, ``watch`` ends those that last too long, ``watchdog`` reports those that do not move."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Upstream's constructor starts the control thread, which needs these.
        self.messages = MessageCounters()
        self.control = Supervisor()
        self.reconnects = Reconnects()
        super().__init__(*args, **kwargs)
        self.watch = Watch(self)
        self.watch.start()
        self.watchdog = Watchdog(self)
        self.control.start(WATCHDOG, self.watchdog.run)
        if self.accounts.speaks and get_observability().enable_metrics:
            metrics = Metrics(self)
            self.control.start("metrics", lambda: publish(metrics.read, threading.Event()))

    # Upstream names these, and calls the one of its role when everything else is ready.

    def _start_bootstrap_thread(self) -> None:
        self.prefill = PrefillControl(self)
        self.transport = Transport(self)
        self._start_control(self.prefill)

    def _start_decode_listener_thread(self) -> None:
        self._start_control(DecodeControl(self))
        self.watch_writers()
        self.control.start("reminders", lambda: remind_for_ever(self))

    def _start_heartbeat_checker_thread(self) -> None:
        self.control.start("heartbeats", lambda: beat_for_ever(self))

    def _register_topology_row(self, url: str, payload: dict[str, Any]) -> None:
        super()._register_topology_row(
            url, {**payload, **bootstrap_server.row(incarnation.mine(), configuration.of(self))}
        )

    def _start_control(self, control: Control) -> None:
        self._role_control = control
        self.outbox = Outbox(self._zmq_ctx, control.lost)
        self.control.start("peers", self.outbox.watch)
        self.pulse = Pulse(envs.SGLANG_PD_SILENCE_TIMEOUT.get())
        self.control.start("pulse", lambda: listen_for_ever(self))
        self.control.start(control.thread, self._serve_control)

    def _serve_control(self) -> None:
        while True:
            self.handle_control_message(self.server_socket.recv_multipart())

    def handle_control_message(self, frames: list[bytes]) -> None:
        """Act on one message; one that is none of the protocol is counted, logged and dropped."""
        try:
            kind, result = self._role_control.handle(frames)
        except wire.ParseError as error:
            count = self.messages.count(error.kind, error.problem)
            if worth_a_line(count):
                logger.warning("dropped a control message, %d of this sort so far: %s", count, error)
        else:
            self.messages.count(kind, result)

    def _send_multipart_locked(self, endpoint: str, parts: list[bytes], is_ipv6: bool = False) -> None:
        """Upstream's one way to send from here; its own may wait 30 s, on the scheduler's loop too."""
        self.outbox.send(endpoint, self._role_control.stamped(endpoint, parts), is_ipv6)

    def add_transfer_request(
        self,
        bootstrap_room: int,
        kv_indices: Any,
        index_slice: slice,
        is_last_chunk: bool,
        aux_index: int | None = None,
        state_indices: list | None = None,
        num_kv_tokens: int | None = None,
        **traces: Any,
    ) -> None:
        """Upstream's way to queue a chunk of a room, on the scheduler's thread."""
        chunk = TransferKVChunk(
            room=bootstrap_room,
            prefill_kv_indices=kv_indices,
            index_slice=index_slice,
            is_last_chunk=is_last_chunk,
            prefill_aux_index=aux_index,
            state_indices=state_indices,
            num_kv_tokens=num_kv_tokens,
            indices_event=traces.get("indices_event"),
        )
        if self.transport.put(bootstrap_room, chunk):
            return
        super().add_transfer_request(
            bootstrap_room, kv_indices, index_slice, is_last_chunk, aux_index, state_indices, num_kv_tokens, **traces
        )

    def conclude_transfer(self, *, bootstrap_room: int, status: int, **more: Any) -> Any:
        """Upstream's way to end a room on prefill."""
        if status == KVPoll.Success:
            self.prefill.delivered(bootstrap_room)
        return super().conclude_transfer(bootstrap_room=bootstrap_room, status=status, **more)

    def _await_handles(self, handles: list[Any], *, failure_seen: bool) -> tuple[bool, bool]:
        return self.transport.await_handles(handles, failure_seen)

    def _reload_invalidated_peers(self, room_transfer_infos: dict[str, Any]) -> None:
        """Upstream's shared workers call this after a failure; its own would not notice a severed connection."""
        self.transport.reconnect(list(room_transfer_infos))

    def _maybe_ack_drained_abort(self, room: int) -> None:
        """Upstream calls this whenever a room's writes may have drained, and when its sender is cleared."""
        super()._maybe_ack_drained_abort(room)
        self.prefill.drained(room)
        if room not in self.request_status:
            self.transport.cleared(room)
