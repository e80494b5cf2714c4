"""DeepSeek-V4's attention layers on upstream's backend and pools, with random bf16 weights, for stress tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

PAGE = 256
RATIOS = (0, 4, 128, 4)  # a layer with the window only, C4, C128, and C4 once more


@dataclass(frozen=True)
class Sizes:
    """Of DeepSeek-V4-Flash at tensor parallel 4, as far as they matter here. ``context``: a multiple of the page; up to
    2048 tokens every compressed key is chosen, so that top-k, whose order is not fixed, changes nothing."""

    hidden: int = 4096
    heads: int = 16
    q_rank: int = 1024
    o_rank: int = 1024
    groups: int = 2
    index_heads: int = 64
    context: int = 2048


class Layers:
    """Layers for up to ``requests`` requests. ``streams``: five side streams, as upstream's model makes them."""

    def __init__(self, sizes: Sizes, requests: int, streams: list[Any], device: str, seed: int = 0):
        from sglang.srt.layers.attention.deepseek_v4_backend import DeepseekV4AttnBackend
        from sglang.srt.models import deepseek_v4

        self.sizes, self.requests, self.device = sizes, requests, device
        torch.manual_seed(seed)
        self.pool, self.table = self._pool()
        self.backend = DeepseekV4AttnBackend(self._runner())
        with (
            mock.patch.object(deepseek_v4, "_is_cuda", True),
            mock.patch.object(deepseek_v4, "get_rope_wrapper", return_value=None),  # of other GPUs' paths
            torch.device(device),
            _default_dtype(torch.bfloat16),
        ):
            self.attention = [
                deepseek_v4.MQALayer(self._config(), number, alt_streams=streams) for number in range(len(RATIOS))
            ]
        for one in self.attention:
            for name, parameter in one.named_parameters():
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.02)
        self.backend.init_cuda_graph_state(requests, requests)

    def batch(self, rows: int) -> Any:
        """A decode batch, each request at another length; many of them complete a block of 4, some one of 128."""
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        lens = [self.sizes.context - 128 * (row % 8) - (row // 8) % 5 for row in range(rows)]
        slots = [int(self.table[row, length - 1]) for row, length in enumerate(lens)]
        made = {"dtype": torch.int32, "device": self.device}
        return ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=rows,
            input_ids=torch.zeros(rows, dtype=torch.int64, device=self.device),
            req_pool_indices=torch.arange(rows, **made),
            seq_lens=torch.tensor(lens, **made),
            seq_lens_cpu=torch.tensor(lens, dtype=torch.int32),
            out_cache_loc=torch.tensor(slots, dtype=torch.int64, device=self.device),
            seq_lens_sum=sum(lens),
            positions=torch.tensor(lens, dtype=torch.int64, device=self.device) - 1,
        )

    def forward(self, batch: Any, x: torch.Tensor) -> torch.Tensor:
        """The layers one after the other, as in a captured graph: the metadata's upgrade is part of it."""
        self.backend.init_forward_metadata_in_graph(batch)
        for one in self.attention:
            x = x + one(x, batch.positions, batch)
        return x

    @contextlib.contextmanager
    def capturing(self, batch: Any) -> Iterator[None]:
        """The metadata for a capture, and upstream's context for a forward."""
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

        with forward_context(ForwardContext(attn_backend=self.backend)):
            self.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            yield

    def fill(self, batch: Any) -> None:
        """The metadata of ``batch`` where its captured graph reads it; once, as long as only inputs change."""
        self.backend.init_forward_metadata_out_graph(batch)

    def buffers(self) -> list[torch.Tensor]:
        """Everything that layers store to."""
        found = [*self.pool.swa_kv_pool.kv_buffer]
        for kv_pool in self.pool.kv_pools.values():
            found += kv_pool.kv_buffer
        for index_pool in self.pool.index_pools.values():
            found += index_pool.index_k_with_scale_buffer
        states = [*self.pool.compress_state_pools, *self.pool.indexer_compress_state_pools]
        return [*found, *(state.kv_score_buffer.kv_score for state in states if state is not None)]

    def _config(self) -> Any:
        sizes = self.sizes
        return SimpleNamespace(
            model_type="deepseek_v4", hidden_size=sizes.hidden, head_dim=512, qk_rope_head_dim=64,
            num_attention_heads=sizes.heads, num_key_value_heads=1, q_lora_rank=sizes.q_rank, o_lora_rank=sizes.o_rank,
            o_groups=sizes.groups, index_n_heads=sizes.index_heads, index_head_dim=128, index_topk=512,
            rms_norm_eps=1e-6, compress_ratios=RATIOS, q_head_norm=True, rope_theta=10000.0,
            compress_rope_theta=160000.0, rope_scaling={"original_max_position_embeddings": 4096},
            max_position_embeddings=sizes.context * 2, kv_source_layer_ids=[], index_source_layer_ids=[],
        )  # fmt: skip

    def _pool(self) -> tuple[Any, torch.Tensor]:
        """Pools with room for every request's context, and the slot of each of its tokens."""
        from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

        pages = self.sizes.context // PAGE
        total = self.requests * pages
        pool = DeepSeekV4TokenToKVPool(
            max_num_reqs=self.requests, swa_size=(total + 1) * PAGE, c4_size=total * 64, c128_size=total * 2,
            c4_state_pool_size=(total + 2) * 8, c128_state_pool_size=128 * self.requests, page_size=PAGE,
            swa_page_size=PAGE, dtype=torch.float8_e4m3fn, c4_state_dtype=torch.float32, c128_state_dtype=torch.float32,
            qk_nope_head_dim=448, qk_rope_head_dim=64, indexer_head_dim=128, layer_num=len(RATIOS), device=self.device,
            enable_memory_saver=False, compression_ratios=list(RATIOS), full_size=total * PAGE,
        )  # fmt: skip
        mapping = torch.arange((total + 1) * PAGE + 1, dtype=torch.int64, device=self.device)
        pool.register_mapping(mapping)
        table = torch.arange(PAGE, (total + 1) * PAGE).view(self.requests, self.sizes.context)
        return pool, table

    def _runner(self) -> Any:
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        requests = ReqToTokenPool(
            size=self.requests, max_context_len=self.sizes.context, device=self.device, enable_memory_saver=False
        )
        requests.req_to_token[: self.requests] = self.table.int()
        text = SimpleNamespace(model_type="deepseek_v4", index_topk=512)
        return SimpleNamespace(
            device=self.device,
            page_size=PAGE,
            model_config=SimpleNamespace(
                context_len=self.sizes.context, head_dim=512, v_head_dim=512, hf_text_config=text
            ),
            req_to_token_pool=requests,
            token_to_kv_pool=self.pool,
            hisparse_coordinator=None,
            is_draft_worker=False,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )


def settle(device: str) -> None:
    """Publish the settings that upstream's classes read, as a server of one rank would before it builds them."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_context, get_parallel, get_platform

    get_context().override_server_args(device=device, page_size=PAGE).install()
    names = ("tp", "attn_tp", "moe_tp", "moe_ep", "attn_cp", "attn_dp")
    get_parallel().override_permanently(
        tp_group=SimpleNamespace(world_size=1),
        pp_size=1,
        **{f"{name}_rank": 0 for name in names},
        **{f"{name}_size": 1 for name in names if name != "attn_dp"},
    )
    if get_platform().is_sm120:  # as upstream's start-up does for this model there
        envs.SGLANG_OPT_USE_TOPK_V2.set(False)
        envs.SGLANG_FP8_PAGED_MQA_LOGITS_TORCH.set(True)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(kept)
