"""PD transfer between servers whose KV cache is in host memory."""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.reliable import progress
from sglang_pd.environ import envs


def prepare(manager: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
    """BEFORE hook on ``NixlKVManager.__init__`` of a CPU server; ``args`` is upstream's ``KVArgs``."""
    declare_host_memory(args)
    if envs.SGLANG_PD_RELIABLE.get():
        # Prefill, decode and their computing threads share the machine's cores: a spinning thread takes one of them.
        progress.wait_for_events()
        progress.use_few_workers()


def declare_host_memory(args: Any) -> None:
    """Tell NIXL that every KV buffer is host memory (its DRAM); what upstream inferred for a GPU is overwritten.

    Raises ``ValueError`` for a model with recurrent or sliding-window state: upstream registers those buffers as VRAM
    whatever they are.
    """
    if any(address for component in args.state_data_ptrs or () for address in component):
        raise ValueError(
            "PD on a CPU serves models without extra state buffers only: upstream tells NIXL they are VRAM"
        )
    args.kv_data_mem_kinds = ["DRAM"] * len(args.kv_data_ptrs)
