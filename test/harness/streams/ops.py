"""Upstream's compiled kernels of the attention layer, declared: what each reads and writes, from its launch signature.

Those of :mod:`harness.dsv4.cuda_ops` have bodies, which a test runs to compare what they touch with what is declared
here; the rest have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.dsv4 import cuda_ops
from sgl_kernel_sm120.streamcheck.kernels import Kernels

OPS = "sglang.kernels.ops.attention.dsv4."


def main_q_module(*_: Any) -> Any:
    def forward(q, q_out, freqs, positions, eps):
        """The model's queries: norm and rope."""

    return SimpleNamespace(forward=forward)


def main_k_module(*_: Any) -> Any:
    def forward(kv, weight, freqs, positions, out_loc, pages, eps):
        """The window's KV: norm, rope, store."""

    return SimpleNamespace(forward=forward)


def rope_module() -> Any:
    def forward(q, k, freqs, positions, inverse):
        """Rope in place."""

    return SimpleNamespace(forward=forward)


def topk_module() -> Any:
    def topk_transform(scores, lens, tables, slots, page_size, raw=None):
        """The best keys' slots."""

    return SimpleNamespace(topk_transform=topk_transform)


def topk_v2_module() -> Any:
    def topk_plan(lens, plan, threshold):
        """Which rows go to clusters."""

    def topk_transform_paged(scores, lens, tables, slots, page_size, plan, raw):
        """The best keys' slots, by a plan."""

    return SimpleNamespace(topk_plan=topk_plan, topk_transform_paged=topk_transform_paged)


def metadata_module() -> Any:
    def run(lens, plan, workspace):
        """How the scores' rows are divided."""

    return SimpleNamespace(run=run)


def flashinfer_attention(q, kv_cache, indices, output, out_lse, sm_scale, *, mid_out=None, mid_lse=None, **others):
    """FlashInfer's sparse attention on SM120."""


def index_logits(q, pages, weights, lens, tables, plan, width, clean):
    """DeepGEMM's scores of FP8 keys."""
    return torch.empty(len(q), width)


def index_logits_plan(lens, page_size, multiprocessors):
    """How DeepGEMM divides the scores' rows."""
    return torch.empty(multiprocessors + 1, 2, dtype=torch.int32)


@dataclass(frozen=True)
class Method:
    """A kernel: what it writes, and what it reads before it waits for the launch before it. Other tensors are read."""

    writes: tuple[str, ...]
    early: tuple[str, ...] = ()


# By factory of a compiled module: its stand-in, and its kernels. What is read early stands in upstream's sources before
# ``PDLWaitPrimary`` (``kernels/jit/csrc/deepseek_v4`` in 0.5.23).
FACTORIES: dict[str, tuple[Callable[..., Any], dict[str, Method]]] = {
    OPS + "compress._jit_compress_module": (
        cuda_ops.compress_module,
        {
            "decode": Method(("buffer", "out"), ("plan",)),
            "prefill": Method(("buffer", "out"), ("plan_c", "plan_w")),
        },
    ),
    OPS + "compress._jit_compress_norm_rope_module": (
        cuda_ops.norm_rope_module,
        {"forward": Method(("pages",), ("plan", "out_loc"))},
    ),
    OPS + "attn._jit_metadata_module": (metadata_module, {"run": Method(("plan", "workspace"))}),
    OPS + "attn._jit_fused_store_module": (cuda_ops.store_module, {"run": Method(("pages",))}),
    OPS + "norm_rope._jit_main_q_indexer_rope_hadamard_quant_module": (
        cuda_ops.query_module,
        {"forward": Method(("q_out", "weight_out"), ("positions",))},
    ),
    OPS + "norm_rope._jit_main_q_norm_rope_module": (
        main_q_module,
        {"forward": Method(("q_out",), ("positions", "freqs"))},
    ),
    OPS + "norm_rope._jit_main_k_norm_rope_flashmla_module": (
        main_k_module,
        {"forward": Method(("pages",), ("positions",))},
    ),
    OPS + "norm_rope._jit_fused_rope_module": (rope_module, {"forward": Method(("q", "k"), ("positions", "freqs"))}),
    OPS + "topk._jit_topk_v1_module": (topk_module, {"topk_transform": Method(("slots", "raw"), ("lens",))}),
    OPS + "topk._jit_topk_v2_module": (
        topk_v2_module,
        {
            "topk_plan": Method(("plan",)),
            "topk_transform_paged": Method(("slots", "raw"), ("lens", "plan")),
        },
    ),
}
# Functions: stand-in, what is written, whether the result is new.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], bool]] = {
    "sglang.srt.layers.attention.dsv4.compressor.linear_bf16_fp32": (cuda_ops.linear_bf16_fp32, (), True),
    "deep_gemm.fp8_paged_mqa_logits": (index_logits, (), True),
    "deep_gemm.get_paged_mqa_logits_metadata": (index_logits_plan, (), True),
    "flashinfer.mla._sparse_mla_sm120._sparse_mla_sm120_paged_attention": (
        flashinfer_attention,
        ("output", "out_lse", "mid_out", "mid_lse"),
        False,
    ),
}
# The scores on SM120 as it comes; a module that takes a second to import, so only where it is asked for.
TILELANG = "sglang.kernels.ops.attention.dsa.tilelang_kernel.tilelang_fp8_paged_mqa_logits"
FUNCTION_NAMES = {target.rpartition(".")[2] for target in FUNCTIONS}


@contextlib.contextmanager
def declared(kernels: Kernels) -> Iterator[None]:
    """Every one of them is a declared kernel of ``kernels``."""
    from sglang.srt.environ import envs

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("deep_gemm.get_num_sms", return_value=188))
        for target, (factory, methods) in FACTORIES.items():
            stack.enter_context(mock.patch(target, _factory(kernels, factory, methods, _name(target))))
        functions = dict(FUNCTIONS)
        if envs.SGLANG_OPT_USE_TILELANG_INDEXER.get():
            functions[TILELANG] = (index_logits, (), True)
        for target, (body, writes, allocates) in functions.items():
            fake = kernels.declared(body, _name(target), writes, allocates=allocates)
            stack.enter_context(mock.patch(target, fake))
        yield


def _name(target: str) -> str:
    return target.rpartition(".")[2].removeprefix("_jit_").removesuffix("_module")


def _factory(
    kernels: Kernels, factory: Callable[..., Any], methods: dict[str, Method], name: str
) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        module = factory(*args, **kwargs)
        return SimpleNamespace(
            **{
                method: kernels.declared(
                    getattr(module, method), f"{name}.{method}", declared.writes, early=declared.early
                )
                for method, declared in methods.items()
            }
        )

    return make
