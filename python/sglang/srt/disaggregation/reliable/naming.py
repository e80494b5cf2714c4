"""Makes known which request a room belongs to."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.reliable import answers
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver
from sglang.srt.disaggregation.reliable.sender import ReliableKVSender


def name_decode_room(decode_req: Any, queue: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``DecodePreallocQueue._create_receiver_and_enqueue``."""
    _name(decode_req.kv_receiver, req)


def name_prefill_room(created: bool, queue: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``PrefillBootstrapQueue.create_sender``."""
    if created:
        _name(req.disagg_kv_sender, req)


def _name(end: Any, req: Any) -> None:
    if isinstance(end, (ReliableKVSender, ReliableKVReceiver)):
        end.req = req
        answers.keep(req, end.kv_mgr.accounts)
