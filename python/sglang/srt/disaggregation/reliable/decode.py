"""Decode's side of the control plane."""

from __future__ import annotations

from typing import Any, ClassVar

from sglang.srt.disaggregation.reliable import wire
from sglang.srt.disaggregation.reliable.control import Result


class DecodeControl:
    """Acts on what prefill ranks send to this decode rank; ``manager`` is its ``ReliableKVManager``."""

    thread: ClassVar[str] = "decode-control"

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def handle(self, frames: list[bytes]) -> tuple[str, Result]:
        message = wire.parse_to_decode(frames)
        match message:
            case wire.Status():
                return message.kind, self._status(message)
            case wire.ChunkReady():
                self._manager.handle_chunk_ready(frames)
            case wire.StagingRequest():
                if not self._manager.enable_staging:
                    return message.kind, "rejected"
                self._manager._handle_staging_req(frames)
            case wire.AbortAck():
                self._manager.handle_abort_ack_message(frames)
        return message.kind, "handled"

    def _status(self, message: wire.Status) -> Result:
        if message.room not in self._manager.request_status:
            return "stale"
        self._manager.apply_prefill_status(
            bootstrap_room=message.room,
            status=message.status,
            prefill_rank=message.rank,
            failure_reason=message.reason,
        )
        return "handled"
