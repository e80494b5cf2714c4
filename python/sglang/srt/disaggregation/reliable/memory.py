"""Which kind of memory NIXL is told a buffer lies in."""

from __future__ import annotations

from typing import Any


def declare_host_memory(manager: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
    """BEFORE hook on ``NixlKVManager.__init__``: every KV buffer of a CPU server is host memory (NIXL's DRAM).

    ``args`` is upstream's ``KVArgs``; what upstream inferred for a GPU is overwritten. Raises ``ValueError`` for a
    model with recurrent or sliding-window state: upstream registers those buffers as VRAM whatever they are.
    """
    if any(address for component in args.state_data_ptrs or () for address in component):
        raise ValueError(
            "PD on a CPU serves models without extra state buffers only: upstream tells NIXL they are VRAM"
        )
    args.kv_data_mem_kinds = ["DRAM"] * len(args.kv_data_ptrs)
