"""Time of the compiled index-K kernels on a GPU, beside what that card can do, measured in the same run.

Memory: the rate of a copy on the device, bytes read and written. Matrix unit: the rate of a large bf16 product.
Baselines: the same logits in torch, and upstream's FP8 kernel where it is installed and runs on this GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from sgl_kernel_sm120.index_k import launch as launches
from sgl_kernel_sm120.index_k import reference
from sgl_kernel_sm120.index_k.decode_logits import decode_logits
from sgl_kernel_sm120.index_k.launch import IndexKLaunch
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS
from sgl_kernel_sm120.index_k.prefill_logits import prefill_logits

HEADS = 64
FLUSH_BYTES = 256 << 20
COPY_BYTES = 4 << 30
# Error allowed to logits of order 1: operands are bf16 in both, sums are fp32 in one.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Row:
    """``of_card``: the part of the card's measured rate, of its memory (decode) or its matrix unit (prefill)."""

    kernel: str
    rows: int
    keys: int
    milliseconds: float
    gb_per_s: float
    tflops: float
    of_card: float


@dataclass(frozen=True)
class Case:
    q: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.keys, self.weights, self.table, self.lens


def bench(function: Callable[[], object], repetitions: int = 30) -> float:
    """Median milliseconds of a call, the L2 cache emptied before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        function()
    times = []
    for _ in range(repetitions):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def copy_rate() -> float:
    """GB/s (10^9) of a copy on the device, bytes read plus bytes written."""
    source = torch.empty(COPY_BYTES, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / bench(lambda: target.copy_(source), 10) / 1e6


def matrix_rate(size: int = 8192) -> float:
    """TFLOPS of a bf16 product of squares."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / bench(lambda: a @ b, 10) / 1e9


def case(rows: int, keys: int, one_request: bool) -> Case:
    """Rows of ``keys`` keys each, the pages scrambled; of one request, or each with pages of its own."""
    pages = keys // PAGE_SLOTS
    count = pages * (1 if one_request else rows)
    table = torch.randperm(count, device="cuda").int().view(-1, pages).expand(rows, pages).contiguous()
    return Case(
        torch.randn(rows, HEADS, HEAD_DIM, device="cuda").bfloat16(),
        torch.randn(count, PAGE_SLOTS, HEAD_DIM, device="cuda").bfloat16(),
        torch.randn(rows, HEADS, device="cuda") * (HEADS * HEAD_DIM) ** -0.5,
        table,
        torch.full((rows,), keys, dtype=torch.int32, device="cuda"),
    )


def decode(one: Case, launch: IndexKLaunch) -> torch.Tensor:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    return decode_logits(*one.args, launch=launch.decode, multiprocessors=processors)


def torch_logits(one: Case) -> torch.Tensor:
    """The same logits in torch: keys gathered, one product per row, all in bf16 with fp32 sums."""
    keys = one.keys[one.table.long()].flatten(1, 2)
    scores = torch.relu(torch.bmm(one.q, keys.transpose(1, 2)))
    return torch.einsum("rh,rhn->rn", one.weights, scores.float())


def upstream_fp8(one: Case) -> Callable[[], object] | str:
    """A call of upstream's FP8 paged kernel on keys of the same number, or why there is none."""
    try:
        import deep_gemm

        pages = one.keys.shape[0]
        q = one.q.to(torch.float8_e4m3fn).unsqueeze(1)
        cache = torch.zeros(pages, PAGE_SLOTS, 1, HEAD_DIM + 4, dtype=torch.uint8, device="cuda")
        lens = one.lens.unsqueeze(-1)
        plan = deep_gemm.get_paged_mqa_logits_metadata(lens, PAGE_SLOTS, deep_gemm.get_num_sms())
        width = one.table.shape[1] * PAGE_SLOTS

        def call() -> object:
            return deep_gemm.fp8_paged_mqa_logits(q, cache, one.weights, lens, one.table, plan, width, False)

        call()
        torch.cuda.synchronize()
    except (ImportError, RuntimeError, AttributeError, AssertionError, TypeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return call


def worst_error(launch: IndexKLaunch) -> float:
    """The largest difference of compiled kernels from float64, over rows of ragged lengths."""
    one = case(4, 4096, one_request=True)
    lens = torch.tensor([1, 63, 65, 4000], dtype=torch.int32, device="cuda")
    ragged = Case(one.q, one.keys, one.weights, one.table, lens)
    exact = reference.logits(*(tensor.cpu() for tensor in ragged.args))
    worst = 0.0
    for found in (decode(ragged, launch), prefill_logits(*ragged.args, launch=launch.prefill)):
        for row, length in enumerate(lens.tolist()):
            worst = max(worst, (found[row, :length].cpu().double() - exact[row, :length]).abs().max().item())
    return worst


def measure(copy: float, matrix: float) -> Iterator[Row | str]:
    """Rows of every kernel and size; a text where a baseline cannot be measured, and why."""
    launch = launches.defaults(torch.cuda.get_device_capability()[0])
    for rows, keys in ((1, 131072), (16, 8192), (16, 32768), (16, 131072), (96, 8192), (96, 32768)):
        one = case(rows, keys, one_request=False)
        size = rows * keys * HEAD_DIM * 2
        flops = 2 * rows * keys * HEADS * HEAD_DIM
        calls: dict[str, Callable[[], object] | str] = {
            "decode bf16": lambda one=one: decode(one, launch),  # type: ignore[misc]
            "decode torch": lambda one=one: torch_logits(one),  # type: ignore[misc]
            "decode upstream fp8": upstream_fp8(one),
        }
        for name, call in calls.items():
            if isinstance(call, str):
                yield f"{name}, {rows} rows of {keys} keys: not measured ({call})"
                continue
            read = size * (132 / 256 if name.endswith("fp8") else 1)
            ms = bench(call)
            yield Row(name, rows, keys, ms, read / ms / 1e6, flops / ms / 1e9, read / ms / 1e6 / copy)
        del one, calls
    for rows, keys in ((512, 8192), (1024, 32768), (512, 131072)):
        one = case(rows, keys, one_request=True)
        flops = 2 * rows * keys * HEADS * HEAD_DIM
        ms = bench(lambda one=one: prefill_logits(*one.args, launch=launch.prefill), 10)  # type: ignore[misc]
        yield Row("prefill bf16", rows, keys, ms, keys * 256 / ms / 1e6, flops / ms / 1e9, flops / ms / 1e9 / matrix)
        del one
