"""Upstream's CUDA-only ops of the attention layer, in PyTorch: the one table of what stands in for them in tests.

Each row replaces the smallest thing that needs a GPU: a compiled module, of which upstream's Python around it keeps
calling the same functions. The plans and the state ring follow upstream's structs
(``kernels/jit/include/sgl_kernel/deepseek_v4/compress_v2.cuh``, ``csrc/deepseek_v4/c_plan.cuh`` in 0.5.23).
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from sgl_kernel_sm120.index_k import reference as index_k
from sgl_kernel_sm120.sparse_mla import reference as sparse_mla

INVALID = -1


def install() -> None:
    """Replace every row's target in this process."""
    for target, ours in TABLE.items():
        owner, _, name = target.rpartition(".")
        pkgutil.resolve_name(owner)
        setattr(pkgutil.resolve_name(owner), name, ours)


def _locations(req_pool_indices, req_to_token, full_to_state, ratio, swa_page_size, ring_size):
    """The state's row of a position, by request: C4 by the page of the window, C128 by the request."""

    def location(batch: int, position: int) -> int:
        request = int(req_pool_indices[batch])
        if ratio == 128:
            return request * ring_size + position % ring_size
        slot = int(full_to_state[int(req_to_token[request, position])])
        return slot // swa_page_size * ring_size + slot % ring_size

    return location


def plan_decode(
    compress_ratio,
    req_pool_indices,
    req_to_token,
    full_to_state,
    seq_lens,
    swa_page_size,
    ring_size,
    use_req_ring=False,
):
    from sglang.kernels.ops.attention.dsv4 import CompressorDecodePlan

    location = _locations(req_pool_indices, req_to_token, full_to_state, compress_ratio, swa_page_size, ring_size)
    rows = []
    for batch, length in enumerate(seq_lens.tolist()):
        before = max(length - 1 - compress_ratio, 0)
        write = location(batch, length - 1)
        rows.append([length, write, location(batch, before) // compress_ratio, write // compress_ratio])
    return CompressorDecodePlan(compress_ratio, torch.tensor(rows, dtype=torch.int32).view(torch.uint8))


def plan_prefill(
    compress_ratio, req_pool_indices, seq_lens, extend_lens, req_to_token, full_to_state, swa_page_size, ring_size,
    num_q_tokens, use_cuda_graph=False, use_req_ring=False,
):  # fmt: skip
    from sglang.kernels.ops.attention.dsv4 import CompressorPrefillPlan

    ratio, overlap = compress_ratio, compress_ratio == 4
    window = ratio * (2 if overlap else 1)
    location = _locations(req_pool_indices, req_to_token, full_to_state, ratio, swa_page_size, ring_size)
    compress, write, token = [], [], 0
    for batch, (length, extend) in enumerate(zip(seq_lens.tolist(), extend_lens.tolist(), strict=True)):
        first_written = length // ratio * ratio - (ratio if overlap else 0)
        for nth in range(extend):
            position = length - extend + nth
            if (position + 1) % ratio == 0:
                kept = window - min(nth + 1, window)
                pages = [location(batch, max(position - ratio, 0)), location(batch, position)] if kept else [-ratio] * 2
                compress.append([position + 1, token | kept << 16, *(page // ratio for page in pages)])
            if position >= first_written or (overlap and position % swa_page_size >= swa_page_size - ratio):
                write.append([token, location(batch, position)])
            token += 1
    plan_c, plan_w = (
        torch.tensor(rows, dtype=torch.int32).view(-1, words).view(torch.uint8)
        for rows, words in ((compress, 4), (write, 2))
    )
    return CompressorPrefillPlan(ratio, plan_c, plan_w)


def compress_module(head_dim, dtype_buffer, dtype_in, dtype_out, ratio):
    """Softmax over the tokens of a block (C4: of the block before as well, by its other half), per dimension."""
    overlap = ratio == 4
    width = ratio * (2 if overlap else 1)

    def weighted(tokens: list[torch.Tensor | None], bias: torch.Tensor) -> torch.Tensor:
        values, scores = [], []
        for nth, token in enumerate(tokens):
            if token is None:
                values.append(torch.zeros(head_dim))
                scores.append(torch.full((head_dim,), -torch.inf))
                continue
            parts = token.float().view(-1, head_dim)
            half = 1 if overlap and nth >= ratio else 0
            values.append(parts[half])
            scores.append(parts[len(parts) // 2 + half] + bias[nth].float())
        weights = torch.softmax(torch.stack(scores), dim=0)
        return (weights * torch.stack(values)).sum(0)

    def gather(pages: list[int], buffer: torch.Tensor, first: bool) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        if overlap:
            found += [None] * ratio if first else list(buffer[pages[0]])
        return [*found, *buffer[pages[1]]]

    def decode(buffer, source, out, bias, plan):
        rows = buffer.view(-1, buffer.shape[-1])
        for batch, (length, write, page0, page1) in enumerate(plan.view(torch.int32).tolist()):
            rows[write] = source[batch].to(buffer.dtype)
            if length % ratio == 0:
                out[batch] = weighted(gather([page0, page1], buffer, length == ratio), bias).to(out.dtype)

    def prefill(buffer, source, out, bias, plan_c, plan_w):
        for nth, (length, packed, page0, page1) in enumerate(plan_c.view(torch.int32).tolist()):
            if length == INVALID:
                continue
            token, kept = packed & 0xFFFF, packed >> 16
            tokens = gather([page0, page1], buffer, length == ratio) if kept else [None] * width
            for place in range(kept, width):
                missing = overlap and place < ratio and length == ratio
                tokens[place] = None if missing else source[token - width + 1 + place]
            out[nth] = weighted(tokens, bias).to(out.dtype)
        rows = buffer.view(-1, buffer.shape[-1])
        for token, write in plan_w.view(torch.int32).tolist():
            rows[write] = source[token].to(buffer.dtype)

    return SimpleNamespace(decode=decode, prefill=prefill)


def norm_rope_module(dtype, head_dim, rope_dim, page_size, bf16_store, layout, fp8_2buff=False):
    """Finish compressed rows and store them: the latent in FP8 + rope, index keys in FP8 with one scale."""

    def forward(kv, plan, weight, eps, freqs, out_loc, pages, is_decode, ratio):
        words = plan.view(torch.int32).view(-1, 4)
        length = words[:, 0].long()
        valid = (length % ratio == 0) & (length > 0) if is_decode else length != INVALID
        which = torch.arange(len(words)) if is_decode else words[:, 1].long() & 0xFFFF
        slots, positions = out_loc[which[valid]], length[valid] - ratio
        rows = index_k.rope(index_k.rms_norm(kv[valid].float(), weight, eps), freqs, positions)
        if head_dim == 512:
            sparse_mla.store(pages, page_size, slots, rows)
        else:
            _store_index_keys(pages, slots, index_k.hadamard(rows))

    return SimpleNamespace(forward=forward)


def _store_index_keys(pages: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor) -> None:
    scale = keys.abs().amax(-1).clamp(min=1e-4) / 448
    packed = (keys / scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
    page, slot = slots // 64, slots % 64
    pages[page[:, None], torch.arange(128) + (slot * 128)[:, None]] = packed
    pages[page[:, None], torch.arange(4) + (64 * 128 + slot * 4)[:, None]] = (
        scale[:, None].contiguous().view(torch.uint8)
    )


def store_module(name, input_dtype, index_dtype, page_size, layout):
    def run(keys, pages, slots):
        sparse_mla.store(pages, page_size, slots.long(), keys.view(-1, 512).float())

    return SimpleNamespace(run=run)


def query_module(dtype):
    def forward(q, q_out, weight, weight_out, weight_scale, freqs, positions):
        rows = index_k.hadamard(index_k.rope(q.float(), freqs, positions))
        scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        q_out.copy_((rows / scale).to(torch.float8_e4m3fn))
        weight_out.copy_(weight.float()[..., None] * weight_scale * scale)

    return SimpleNamespace(forward=forward)


def linear_bf16_fp32(x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
    return x.float() @ y.float().T


@contextlib.contextmanager
def fast_metadata() -> Iterator[None]:
    """For thousands of rows: upstream's kernel for the compressed layers' metadata, which the interpreter runs as it is
    but row by row, in PyTorch."""
    from sglang.srt.layers.attention import deepseek_v4_backend as upstream

    kept, upstream._init_compression_metadata_triton = upstream._init_compression_metadata_triton, _metadata
    yield
    upstream._init_compression_metadata_triton = kept


def _metadata(lens, positions, out_loc, page_table, page_size, compute_page_indices=True):
    found = []
    for ratio in (4, 128):
        raw = (lens // ratio).int()
        slots = torch.where(lens % ratio == 0, out_loc // ratio, 0)
        found += [slots, (positions & -ratio).int(), raw, raw.clamp(min=1)]
    nth = torch.arange(page_table.shape[1] * 2)
    indices = page_table[:, nth // 2] * 2 + nth % 2
    return *found, torch.where(nth < found[6][:, None], indices, -1).int()


_OPS = "sglang.kernels.ops.attention.dsv4."
TABLE = {
    _OPS + "compress.CompressorDecodePlan.generate": staticmethod(plan_decode),
    _OPS + "compress.CompressorPrefillPlan.generate": staticmethod(plan_prefill),
    _OPS + "compress._jit_compress_module": compress_module,
    _OPS + "compress._jit_compress_norm_rope_module": norm_rope_module,
    _OPS + "attn._jit_fused_store_module": store_module,
    _OPS + "norm_rope._jit_main_q_indexer_rope_hadamard_quant_module": query_module,
    "sglang.srt.layers.attention.dsv4.compressor.linear_bf16_fp32": linear_bf16_fp32,
}
