"""Roles of a PD pair whose KV is the index-K buffers of upstream's real pool, in bf16 or FP8."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.managers import Nursery, Pair
from harness.roles import Role, RoleSpec
from harness.servers import free_port

LAYERS = 4  # each with one buffer, where a plain role has two
RESERVED_PAGES = 4
VARIABLE = "SGLANG_DSV4_BF16_INDEX_K"


@dataclass(frozen=True)
class IndexKSpec(RoleSpec):
    """``environment`` says whether the keys are bf16, and ``page_bytes`` must agree."""

    layers: int = LAYERS // 2
    pages: int = 68
    aux_slots: int = 64

    def build(self) -> Any:
        os.environ.update(self.environment)
        if self.environment[VARIABLE] == "1":
            _attach()
        return IndexKRole(self)


class IndexKRole(Role):
    """A role with the pool's buffers and its tag."""

    def allocate(self) -> list[np.ndarray]:
        from sglang.srt.disaggregation.base.conn import KVArgs

        from harness.dsv4 import models

        pool = models.small_token_pool([4] * LAYERS, self.spec.pages - RESERVED_PAGES)
        # A scheduler hands the manager the pool's tag beside the buffers; here the arguments' default carries it.
        KVArgs.kv_layout = pool.pd_kv_layout()
        self.pool = pool
        return [buffer.numpy() for buffer in pool.index_pools[4].contiguous_page_row_buffers()]

    def keys(self, page: int) -> list[float]:
        """The sum of each layer's keys in a page, seen as bf16."""
        from sglang.srt.layers.attention.dsv4_sm120.pool import keys_of

        return [keys_of(self.pool, layer)[page].double().sum().item() for layer in range(LAYERS)]

    def set_keys(self, page: int, value: float) -> None:
        """Write keys to a page as the store kernel's tensor sees it."""
        from sglang.srt.layers.attention.dsv4_sm120.pool import keys_of

        for layer in range(LAYERS):
            keys_of(self.pool, layer)[page] = value + layer


def _attach() -> None:
    """The hooks that bf16 keys bring, in a process that was forked after plugins were loaded without them. The role's
    start then verifies, as a server's does, that all are live."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_pd import hooks

    hooks.attach(tuple(row for row in hooks.selected() if row.where in ("dsv4_bf16", "dsv4_overlap")))
    HookRegistry.apply_hooks()


class IndexKPair(Pair):
    """A prefill and a decode, each with bf16 index keys or with FP8 ones."""

    def __init__(self, nursery: Nursery, prefill: bool, decode: bool):
        port = free_port()
        self.prefill, self.decode = (
            nursery.start(IndexKSpec(mode, port, {VARIABLE: str(int(bf16))}, page_bytes=16384 if bf16 else 64 * 132))
            for mode, bf16 in (("prefill", prefill), ("decode", decode))
        )
        self._rooms = itertools.count(2000)
