"""Upstream's compressor and indexer mixins over a real pool: store keys, then choose the best of them.

What only a GPU has is stood in for: the kernel that compresses tokens, by a function that returns the keys a case
brings. All else is upstream's, with our hooks.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from harness.dsv4 import models
from sgl_kernel_sm120.index_k import plans, reference

HEADS, RANK, HIDDEN = 64, 64, 256


def frequencies(positions: int = 4096) -> torch.Tensor:
    """complex64 ``[positions, 32]``, rotations as rope makes them."""
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)[None, :]
    return torch.polar(torch.ones_like(angles), angles)


def indexer(layer_id: int = 1) -> Any:
    """Upstream's ``C4Indexer`` with random weights, on the CPU."""
    from sglang.srt.layers.attention.dsv4.indexer import C4Indexer

    config = SimpleNamespace(
        hidden_size=HIDDEN,
        q_lora_rank=RANK,
        index_n_heads=HEADS,
        index_head_dim=128,
        index_topk=512,
        qk_rope_head_dim=64,
        rms_norm_eps=1e-6,
    )
    built = C4Indexer(config, layer_id, frequencies())
    for name, parameter in built.named_parameters():
        torch.nn.init.ones_(parameter) if name.endswith("norm.weight") else torch.nn.init.normal_(parameter, std=0.1)
    return built


def backend(pool: Any, **metadata: Any) -> Any:
    """Upstream's two mixins, and of the backend that has them what they read of it."""
    from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend
    from sglang.srt.layers.attention.dsv4.compressor_v2 import CompressorBackendMixin
    from sglang.srt.layers.attention.dsv4.indexer import C4IndexerBackendMixin

    class Backend(C4IndexerBackendMixin, CompressorBackendMixin):
        enable_deepseek_v4_fp4_indexer = False
        hisparse_coordinator = None

    built = Backend()
    built.token_to_kv_pool = pool
    built.dsa_topk_backend = DSATopKBackend.TORCH
    built.forward_metadata = SimpleNamespace(**metadata)
    return built


def batch(mode: str) -> Any:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    return SimpleNamespace(forward_mode=ForwardMode[mode], _original_forward_mode=None)


def stored(alias: str, decode: bool, seed: int = 0) -> dict[str, Any]:
    """Store a batch of keys by ``forward_indexer_compressor`` or its other name; return what must have been stored.

    Returns ``pages`` (bf16 as uint8), ``expected`` (float64, the same rows) and ``changed`` (slots).
    """
    from sglang.kernels.ops.attention.dsv4 import CompressorDecodePlan, CompressorPrefillPlan
    from sglang.srt.layers.attention.dsv4 import compressor_v2

    models.settings()
    random = torch.Generator().manual_seed(seed)
    pool = models.small_token_pool([0, 4, 128], pages=4)
    layer = indexer()
    if decode:
        lengths = [4, 5, 8, 255, 256, 260]
        plan = CompressorDecodePlan(4, plans.decode_plan(lengths))
        out_loc = torch.tensor([0, 7, 63, 9, 64, -1])
        rows = 6
    else:
        plan = CompressorPrefillPlan(4, plans.extend_plan([0, 3], [9, 6], padded_to=8), torch.empty(0))
        out_loc = torch.arange(15) + 60
        rows = 8
    keys = torch.randn(rows, 128, generator=random)
    compressor_v2.compress_forward = lambda **_: keys
    layer.compressor.compute_kv_score = lambda x, forward_batch: torch.zeros(rows, 1024)
    built = backend(pool, core_metadata=SimpleNamespace(c4_out_loc=out_loc), c4_compress_metadata=plan)
    before = pool.get_index_k_with_scale_buffer(1).clone()
    getattr(built, alias)(
        x=torch.zeros(rows, HIDDEN), forward_batch=batch("DECODE"), layer_id=1, compressor=layer.compressor
    )
    pages = pool.get_index_k_with_scale_buffer(1)
    expected = torch.zeros(pages.shape[0], 64, 128, dtype=torch.float64)
    norm = layer.compressor.norm
    freqs = torch.view_as_real(layer.freqs_cis).flatten(-2)
    with torch.no_grad():
        reference.store(expected, keys, plan[1], norm.weight, norm.variance_epsilon, freqs, out_loc, decode)
    changed = (pages != before).view(-1, 256).any(1).nonzero().flatten()
    return {
        "pages": pages.numpy(),
        "expected": expected.numpy(),
        "changed": changed.tolist(),
    }


def chosen(mode: str, lens: list[int], requests: list[int], scratch_bytes: int | None = None) -> dict[str, Any]:
    """Choose keys by ``forward_c4_indexer`` for rows of these lengths, each with the pages of its request.

    Returns ``slots`` (as upstream's top-k wrote them, ``[rows, 512]``) and ``scores`` (float64 over ``order``, the
    slots of each row's keys in order).
    """
    from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata

    from sglang.srt.layers.attention.dsv4_sm120 import settings

    models.settings()
    if scratch_bytes:
        settings.scratch_bytes = lambda: scratch_bytes
    random = torch.Generator().manual_seed(len(lens))
    width = -(-max(lens) // 64) + 1
    pool = models.small_token_pool([0, 4, 128], pages=width * (max(requests) + 1))
    buffer = pool.get_index_k_with_scale_buffer(1)
    keys = buffer.view(torch.bfloat16).view(-1, 64, 128)
    keys.copy_(torch.randn(keys.shape, generator=random))
    tables = torch.randperm(len(keys) - 1, generator=random)[: width * (max(requests) + 1)].view(-1, width) + 1
    table = tables[torch.tensor(requests)].int()
    # Every slot that no row has is NaN: a kernel that reads or writes too far is seen.
    used = torch.zeros(len(keys), 64, dtype=torch.bool)
    for row, length in enumerate(lens):
        n = torch.arange(length)
        used[table[row, n // 64].long(), n % 64] = True
    keys[~used] = torch.nan
    layer = indexer()
    rows = len(lens)
    positions = torch.tensor(lens) * 4
    x = torch.randn(rows, HIDDEN, generator=random).bfloat16()
    q_lora = torch.randn(rows, RANK, generator=random).bfloat16()
    slots = torch.full((rows, 512), -7, dtype=torch.int32)
    indexed = PagedIndexerMetadata(
        page_size=models.PAGE,
        compressed_page_size=64,
        page_table=table,
        compressed_seq_lens=torch.tensor(lens, dtype=torch.int32),
        use_topk_v2=False,
    )
    core = SimpleNamespace(positions=positions, c4_sparse_page_indices=slots, c4_sparse_raw_indices=None)
    built = backend(pool, core_metadata=core, indexer_metadata=indexed)
    with torch.no_grad():
        built.forward_c4_indexer(x, q_lora, layer, batch(mode), skip_compressor=True)
        q, _ = layer.wq_b(q_lora)
        q = reference.query(q.view(rows, HEADS, 128), torch.view_as_real(layer.freqs_cis).flatten(-2), positions)
        weights = layer.weights_proj(x)[0].double() * layer.weight_scale
    scores = reference.logits(q, keys, weights, table, indexed.compressed_seq_lens)
    order = [(table[row].repeat_interleave(64) * 64 + torch.arange(64).repeat(width))[:n] for row, n in enumerate(lens)]
    return {
        "slots": slots.numpy(),
        "order": [one.numpy() for one in order],
        "scores": [scores[row, :n].numpy() for row, n in enumerate(lens)],
    }


def latent() -> str:
    """Who stores rows of 512 values: upstream's function is asked, which on a CPU fails to build its kernel."""
    from sglang.kernels.ops.attention.dsv4 import CompressorDecodePlan, compress, compress_norm_rope_store

    def build(*args: Any) -> Any:
        raise LookupError("upstream")

    compress._jit_compress_norm_rope_module = build
    try:
        compress_norm_rope_store(
            torch.zeros(1, 512),
            CompressorDecodePlan(4, plans.decode_plan([4])),
            norm_weight=torch.ones(512),
            norm_eps=1e-6,
            freq_cis=frequencies(8),
            out_loc=torch.zeros(1, dtype=torch.int64),
            kvcache=torch.zeros(2, 37440, dtype=torch.uint8),
            page_size=64,
        )
    except LookupError as error:
        return str(error)
    return "ours"
