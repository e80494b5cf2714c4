"""Which classes carry a PD transfer: ours over NIXL, upstream's over everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_pd.environ import envs


def choose_kv_class(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    """AROUND hook on ``get_kv_class``; ``SGLANG_PD_RELIABLE=0`` leaves upstream's answer."""
    upstream = original(transfer_backend, class_type)
    if not envs.SGLANG_PD_RELIABLE.get():
        return upstream
    # Imported here: upstream's transfer modules import the function that this wraps.
    from sglang.srt.disaggregation.utils import KVClassType, TransferBackend

    if transfer_backend != TransferBackend.NIXL:
        return upstream
    from sglang.srt.disaggregation.reliable.bootstrap_server import ReliableBootstrapServer
    from sglang.srt.disaggregation.reliable.manager import ReliableKVManager
    from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver
    from sglang.srt.disaggregation.reliable.sender import ReliableKVSender

    ours: dict[Any, type] = {
        KVClassType.MANAGER: ReliableKVManager,
        KVClassType.SENDER: ReliableKVSender,
        KVClassType.RECEIVER: ReliableKVReceiver,
        KVClassType.BOOTSTRAP_SERVER: ReliableBootstrapServer,
    }
    return ours.get(class_type, upstream)
