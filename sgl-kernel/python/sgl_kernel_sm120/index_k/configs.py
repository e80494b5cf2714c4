"""Every launch of the index-K kernels that :mod:`.launch` lets through, for the compile gate.

64 heads and the types that DeepSeek-V4 calls with: fp32 compressed keys and norm, bf16 queries.
"""

from __future__ import annotations

from itertools import product

from sgl_kernel_sm120.gate.config import KernelConfig
from sgl_kernel_sm120.index_k import launch
from sgl_kernel_sm120.index_k.decode_logits import decode_logits_kernel
from sgl_kernel_sm120.index_k.layout import COMPRESS_RATIO, HEAD_DIM, PAGE_SLOTS, ROPE_DIM
from sgl_kernel_sm120.index_k.prefill_logits import PAGES, prefill_logits_kernel
from sgl_kernel_sm120.index_k.query import prepare_query_kernel
from sgl_kernel_sm120.index_k.store import store_keys_kernel

HEADS = 64
_ROTATED = {"HEAD_DIM": HEAD_DIM, "ROPE_DIM": ROPE_DIM, "UPCAST": False}
_SCORED = {"HEADS": HEADS, "HEAD_DIM": HEAD_DIM, "PAGE_SLOTS": PAGE_SLOTS, "UPCAST": False}
_SCORED_TYPES = {
    "q": "*bf16:16",
    "keys": "*bf16:16",
    "weights": "*fp32:16",
    "page_table": "*i32:16",
    "lens": "*i32:16",
    "out": "*fp32:16",
    "weights_stride": "i32:16",
    "table_stride": "i32",
    "out_stride": "i32:16",
    "width": "i32:16",
}
# Resident programs that the defaults count on; see launch.py.
_DEFAULT_BLOCKS = {
    launch.DecodeLaunch(): {"sm_120a": 3, "sm_90a": 4},
    launch.PrefillLaunch(): {"sm_120a": 2, "sm_90a": 3},
}


def configs() -> list[KernelConfig]:
    return [*_stores(), *_queries(), *_decodes(), *_prefills()]


def _stores() -> list[KernelConfig]:
    types = {
        "kv": "*fp32:16",
        "plan": "*i32:16",
        "weight": "*fp32:16",
        "freqs": "*fp32:16",
        "out_loc": "*i64:16",
        "keys": "*bf16:16",
        "num_rows": "i32",
        "num_locs": "i32",
        "kv_stride": "i32:16",
        "eps": "fp32",
    }
    return [
        KernelConfig(
            f"store {'decode' if decode else 'extend'} rows={rows} warps={warps}",
            store_keys_kernel,
            types,
            {**_ROTATED, "DECODE": decode, "ROWS": rows, "RATIO": COMPRESS_RATIO},
            warps,
        )
        for decode, rows, warps in product((True, False), launch.ROW_BLOCKS, launch.ROW_WARPS)
    ]


def _queries() -> list[KernelConfig]:
    types = {
        "q": "*bf16:16",
        "weight": "*bf16:16",
        "freqs": "*fp32:16",
        "q_out": "*bf16:16",
        "weight_out": "*fp32:16",
        "num_rows": "i32",
        "q_stride": "i32:16",
        "weight_stride": "i32:16",
        "scale": "fp32",
    }
    return [
        KernelConfig(
            f"query positions={integer} rows={rows} warps={warps}",
            prepare_query_kernel,
            {**types, "positions": f"*{integer}:16"},
            {**_ROTATED, "HEADS": HEADS, "ROWS": rows},
            warps,
        )
        for integer, rows, warps in product(("i32", "i64"), launch.ROW_BLOCKS, launch.ROW_WARPS)
    ]


def _decodes() -> list[KernelConfig]:
    found = []
    for keys, warps, stages in product(launch.BLOCK_KEYS, launch.DECODE_WARPS, launch.DECODE_STAGES):
        found.append(
            KernelConfig(
                f"decode keys={keys} warps={warps} stages={stages}",
                decode_logits_kernel,
                _SCORED_TYPES,
                {**_SCORED, "BLOCK_KEYS": keys},
                warps,
                stages,
                matrix=True,
                blocks=_DEFAULT_BLOCKS.get(launch.DecodeLaunch(keys, warps, stages), {}),
            )
        )
    return found


def _prefills() -> list[KernelConfig]:
    found = []
    for rows, keys, stages in product(launch.PREFILL_ROWS, launch.BLOCK_KEYS, launch.PREFILL_STAGES):
        for warps in launch.PREFILL_WARPS[rows]:
            found.append(
                KernelConfig(
                    f"prefill rows={rows} keys={keys} warps={warps} stages={stages}",
                    prefill_logits_kernel,
                    {**_SCORED_TYPES, "num_rows": "i32"},
                    {**_SCORED, "ROWS": rows, "PAGES": PAGES, "BLOCK_KEYS": keys},
                    warps,
                    stages,
                    matrix=True,
                    blocks=_DEFAULT_BLOCKS.get(launch.PrefillLaunch(rows, keys, warps, stages), {}),
                )
            )
    return found
