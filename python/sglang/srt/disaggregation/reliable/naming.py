"""Tells the accounts whose request a room belongs to."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.reliable.prefill import ReliableKVSender
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver


def name_decode_room(decode_req: Any, queue: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``DecodePreallocQueue._create_receiver_and_enqueue``: tell the accounts whose room it is."""
    receiver = decode_req.kv_receiver
    if isinstance(receiver, ReliableKVReceiver):
        receiver.req = req
        receiver.kv_mgr.accounts.ledger.identify(req.bootstrap_room, rid=req.rid)


def name_prefill_room(created: bool, queue: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``PrefillBootstrapQueue.create_sender``: the same for prefill."""
    sender = req.disagg_kv_sender
    if created and isinstance(sender, ReliableKVSender):
        sender.kv_mgr.accounts.ledger.identify(req.bootstrap_room, rid=req.rid)
