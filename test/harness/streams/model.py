"""Upstream's attention layers of DeepSeek-V4, whole, with side streams, on the backend of ``harness.dsv4.layer``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.dsv4 import indexing, layer

STREAMS = ("kv", "compressor", "indexer", "index-q", "index-weights")


def config() -> Any:
    """Of a small DeepSeek-V4: a layer with the window only, one of ratio 4, one of 128."""
    return SimpleNamespace(
        model_type="deepseek_v4",
        hidden_size=layer.HIDDEN,
        head_dim=512,
        qk_rope_head_dim=64,
        num_attention_heads=layer.HEADS,
        num_key_value_heads=1,
        q_lora_rank=indexing.RANK,
        o_lora_rank=32,
        o_groups=4,
        index_n_heads=indexing.HEADS,
        index_head_dim=128,
        index_topk=512,
        rms_norm_eps=1e-6,
        compress_ratios=layer.RATIOS,
        q_head_norm=True,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling={"original_max_position_embeddings": 4096},
        max_position_embeddings=4096,
        kv_source_layer_ids=[],
        index_source_layer_ids=[],
    )


def parallel() -> None:
    """One rank, as far as the layers ask."""
    from sglang.srt.runtime_context import get_parallel

    names = ("attn_tp", "moe_tp", "moe_ep", "attn_cp", "attn_dp")
    get_parallel().override_permanently(
        tp_group=SimpleNamespace(world_size=1),
        **{f"{name}_rank": 0 for name in names},
        **{f"{name}_size": 1 for name in names if name[-3:] != "_dp"},
    )


@contextlib.contextmanager
def _dtype(dtype: torch.dtype) -> Iterator[None]:
    """Parameters without a type of their own get this one, as where upstream loads a model."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(kept)


class Model(layer.Layers):
    """The three layers with the pools of a small server; ``alt_streams``: five side streams."""

    def __init__(self, alt_streams: list[Any], seed: int = 0):
        from sglang.srt.models import deepseek_v4

        parallel()
        super().__init__(seed)
        torch.manual_seed(seed)
        # The rotary embedding is built for the GPU at hand, and only other GPUs' paths use it.
        with (
            mock.patch.object(deepseek_v4, "_is_cuda", True),
            mock.patch.object(deepseek_v4, "get_rope_wrapper", return_value=None),
            _dtype(torch.bfloat16),
        ):
            self.attention = [
                deepseek_v4.MQALayer(config(), number, alt_streams=alt_streams) for number in range(len(layer.RATIOS))
            ]
        for one in self.attention:
            for parameter in one.parameters():
                torch.nn.init.normal_(parameter, std=0.05)

    def labels(self) -> dict[str, torch.Tensor]:
        """Everything that was there before the first forward, by name."""
        found: dict[str, torch.Tensor] = {}
        for number, one in enumerate(self.attention):
            found |= {f"layer {number} {name}": tensor for name, tensor in one.named_parameters()}
            found |= {f"layer {number} {name}": tensor for name, tensor in one.named_buffers()}
        pool = self.runner.token_to_kv_pool
        found |= {f"layer {n} window KV": tensor for n, tensor in enumerate(pool.swa_kv_pool.kv_buffer)}
        for ratio, kv_pool in pool.kv_pools.items():
            found |= {f"C{ratio} KV {n}": tensor for n, tensor in enumerate(kv_pool.kv_buffer)}
        for ratio, index_pool in pool.index_pools.items():
            buffers = index_pool.index_k_with_scale_buffer
            found |= {f"C{ratio} index keys {n}": tensor for n, tensor in enumerate(buffers)}
        for kind, pools in (("compressor", pool.compress_state_pools), ("indexer", pool.indexer_compress_state_pools)):
            for n, state in enumerate(pools):
                if state is not None:
                    found[f"layer {n} {kind} state"] = state.kv_score_buffer.kv_score
        return found
