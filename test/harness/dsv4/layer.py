"""Upstream's DeepSeek-V4 attention backend, whole, on CPU tensors: extend and decode a batch through three layers.

Upstream's are the backend object, its metadata builder, the pools, the compressors and the indexer; our kernels run in
the interpreter. What only a GPU has is stood in for by :mod:`harness.dsv4.cuda_ops`. Only projections that belong to
the model around the backend (queries, keys) are made up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from harness.dsv4 import cuda_ops, indexing, models

RATIOS = [0, 4, 128]
HEADS, HIDDEN, CONTEXT, REQUESTS = 16, 256, 2560, 4


@dataclass
class Tokens:
    """A layer's inputs, a row per token; ``q``: ``[n, HEADS, 512]``, ``k``: ``[n, 512]``, both after norm and rope."""

    x: torch.Tensor
    q_lora: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor

    @staticmethod
    def random(count: int, random: torch.Generator) -> Tokens:
        shapes = (HIDDEN,), (indexing.RANK,), (HEADS, 512), (512,)
        return Tokens(*(torch.randn(count, *shape, generator=random).bfloat16() for shape in shapes))

    def with_more(self, more: Tokens) -> Tokens:
        return _joined([self, more])


class Layers:
    """Three layers: window only, C4, C128; and the pools of a small server."""

    def __init__(self, seed: int):
        random = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.runner = _runner(random)
        from sglang.srt.layers.attention.deepseek_v4_backend import DeepseekV4AttnBackend

        self.backend = DeepseekV4AttnBackend(self.runner)
        self.indexer = indexing.indexer(RATIOS.index(4))
        self.compressors = {ratio: _compressor(layer, ratio) for layer, ratio in enumerate(RATIOS) if ratio}
        self.sinks = [torch.randn(HEADS, generator=random) for _ in RATIOS]

    def forward(
        self, mode: str, requests: list[int], before: list[int], given: list[list[Tokens]], attend: bool = True
    ):
        """One batch. ``before``: tokens that each request had; ``given``: per layer, per request, its new tokens.

        Returns per layer the output ``[tokens, HEADS, 512]``, and the positions of the keys that C4's indexer chose for
        each token; None each without ``attend``, which only stores.
        """
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

        counts = [len(one.x) for one in given[0]]
        batch = self._batch(mode, requests, before, counts)
        outputs: list[Any] = []
        metadata = contextlib.nullcontext() if attend else cuda_ops.fast_metadata()
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=self.backend)):
            with metadata:
                self.backend.init_forward_metadata(batch)
            for layer, ratio in enumerate(RATIOS):
                tokens = _joined(given[layer])
                outputs.append(self._layer(layer, ratio, tokens, batch, attend))
        return outputs, self._chosen() if attend else None

    def _layer(self, layer: int, ratio: int, tokens: Tokens, batch: Any, attend: bool) -> torch.Tensor | None:
        backend = self.backend
        if ratio == 4:
            backend_call = {"x": tokens.x, "q_lora": tokens.q_lora, "c4_indexer": self.indexer, "forward_batch": batch}
            if attend:
                backend.forward_c4_indexer(**backend_call)
            else:
                backend.forward_indexer_compressor(
                    x=tokens.x, forward_batch=batch, layer_id=layer, compressor=self.indexer.compressor
                )
        if ratio:
            backend.forward_core_compressor(
                x=tokens.x, forward_batch=batch, layer_id=layer, compressor=self.compressors[ratio]
            )
        if not attend:
            backend.store_cache(layer, tokens.k, batch)
            return None
        out = backend.forward(
            q=tokens.q, k=tokens.k, v=tokens.k,
            layer=SimpleNamespace(layer_id=layer, tp_q_head_num=HEADS, v_head_dim=512),
            forward_batch=batch, compress_ratio=ratio, attn_sink=self.sinks[layer],
        )  # fmt: skip
        return out.view(-1, HEADS, 512)

    def _batch(self, mode: str, requests: list[int], before: list[int], counts: list[int]) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        lens = [old + new for old, new in zip(before, counts, strict=True)]
        places = [(r, p) for r, old, n in zip(requests, before, lens, strict=True) for p in range(old, n)]
        table = self.runner.req_to_token_pool.req_to_token
        batch = ForwardBatch(
            forward_mode=ForwardMode[mode],
            batch_size=len(requests),
            input_ids=torch.zeros(len(places), dtype=torch.int64),
            req_pool_indices=torch.tensor(requests, dtype=torch.int32),
            seq_lens=torch.tensor(lens, dtype=torch.int32),
            seq_lens_cpu=torch.tensor(lens, dtype=torch.int32),
            out_cache_loc=torch.tensor([int(table[place]) for place in places], dtype=torch.int64),
            seq_lens_sum=sum(lens),
            positions=torch.tensor([position for _, position in places], dtype=torch.int64),
        )
        if mode == "EXTEND":
            batch.extend_prefix_lens = torch.tensor(before, dtype=torch.int32)
            batch.extend_prefix_lens_cpu = before
            batch.extend_seq_lens = torch.tensor(counts, dtype=torch.int32)
            batch.extend_seq_lens_cpu = counts
            batch.extend_start_loc = torch.tensor([sum(counts[:n]) for n in range(len(counts))], dtype=torch.int32)
            batch.extend_num_tokens = sum(counts)
        return batch

    def _chosen(self) -> torch.Tensor:
        """Positions of the compressed keys that the indexer chose for each row, -1 where fewer."""
        core = self.backend.forward_metadata.core_metadata
        slots = core.c4_sparse_page_indices.long()
        pages = core.page_table.long()
        place = (slots[:, :, None] // 64 == pages[:, None, :]).long().argmax(-1)
        return torch.where(slots < 0, -1, place * 64 + slots % 64)


def _joined(parts: list[Tokens]) -> Tokens:
    return Tokens(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "q_lora", "q", "k")))


def _compressor(layer: int, ratio: int) -> Any:
    from sglang.srt.layers.attention.dsv4.compressor import Compressor

    config = SimpleNamespace(hidden_size=HIDDEN, qk_rope_head_dim=64, rms_norm_eps=1e-6)
    built = Compressor(config, layer, False, indexing.frequencies(), ratio, 512)
    for name, parameter in built.named_parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5) if "norm" in name else torch.nn.init.normal_(parameter, std=0.1)
    return built


def _runner(random: torch.Generator) -> Any:
    """What the backend reads of a model runner: pools with pages in a scrambled order, and the model's dimensions."""
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    pages = CONTEXT // models.PAGE
    total = REQUESTS * pages
    sizes = {
        "swa": (total + 1) * models.PAGE,
        "c4": total * 64,
        "c128": total * 2,
        "c4_state": (total + 2) * 8,
        "c128_state": 128 * REQUESTS,
    }
    pool = models.token_pool(sizes, REQUESTS, "cpu", RATIOS)
    requests = ReqToTokenPool(size=REQUESTS, max_context_len=CONTEXT, device="cpu", enable_memory_saver=False)
    full = torch.randperm(total, generator=random).view(REQUESTS, pages) + 1
    slots = (full[:, :, None] * models.PAGE + torch.arange(models.PAGE)).view(REQUESTS, CONTEXT)
    requests.req_to_token[:REQUESTS] = slots.int()
    # A page of the window has a place of its own; what is not mapped is -1, as an index of -1 reads.
    mapping = torch.full(((total + 1) * models.PAGE + 1,), -1, dtype=torch.int64)
    window = torch.randperm(total, generator=random) + 1
    mapping[models.PAGE : -1] = (window[:, None] * models.PAGE + torch.arange(models.PAGE)).view(-1)
    pool.register_mapping(mapping)
    text = SimpleNamespace(model_type="deepseek_v4", index_topk=512)
    return SimpleNamespace(
        device="cpu",
        page_size=models.PAGE,
        model_config=SimpleNamespace(context_len=CONTEXT, head_dim=512, v_head_dim=512, hf_text_config=text),
        req_to_token_pool=requests,
        token_to_kv_pool=pool,
        hisparse_coordinator=None,
        is_draft_worker=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )


@contextlib.contextmanager
def on_sm120() -> Iterator[None]:
    """As on an SM120 GPU, as far as upstream asks."""
    from sglang.srt.runtime_context import _PlatformOverride

    from sgl_kernel_sm120.sparse_mla.split import Machine
    from sglang.srt.layers.attention.dsv4_sm120 import decode_settings

    decode_settings.machine = lambda device: Machine(multiprocessors=8, resident=1)  # decode's few rows are split
    models.settings(dsa_topk_backend="torch")
    cuda_ops.install()
    with _PlatformOverride(is_sm120=True):
        yield
