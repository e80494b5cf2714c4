"""Time of the compiled sparse decode on a GPU, beside its floor and upstream's kernels, all in one run.

The floor is the bytes of the keys that rows attend to, each read once, over the bandwidth of a copy on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from index_k_speed import bench
from sgl_kernel_sm120.sparse_mla import reference
from sgl_kernel_sm120.sparse_mla.decode import sparse_decode
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch
from sgl_kernel_sm120.sparse_mla.layout import HEAD_DIM, SLOT_BYTES, Candidates
from sgl_kernel_sm120.sparse_mla.split import DEFAULT_TARGET_CTAS, Machine, Work, choose
from sgl_kernel_sm120.tune.measure import candidates, pool

SCALE = HEAD_DIM**-0.5
WINDOW = 128
ROWS = (1, 4, 16, 48, 64, 65, 96)
CONTEXTS = (8192, 32768, 131072)
# Slots of a page, and selected keys at a length of context.
LAYERS: dict[str, tuple[int, Callable[[int], int]]] = {
    "C4": (64, lambda context: min(512, context // 4)),
    "C128": (2, lambda context: context // 128),
}
# Of values of order 1: weights are rounded to bf16 for the matrix unit, and so is the result.
TOLERANCE = 2e-2
REPLAYS = 1000


@dataclass(frozen=True)
class Row:
    """``of_floor``: the floor's part of the time; 1 is a kernel that does nothing but read."""

    kernel: str
    layer: str
    rows: int
    context: int
    splits: int
    microseconds: float
    gb_per_s: float
    of_floor: float


@dataclass(frozen=True)
class Case:
    q: torch.Tensor
    window: Candidates
    extra: Candidates
    sink: torch.Tensor

    @property
    def bytes(self) -> int:
        return len(self.q) * (self.window.width + self.extra.width) * SLOT_BYTES

    def splits(self, launch: AttendLaunch) -> int:
        properties = torch.cuda.get_device_properties(0)
        machine = Machine(properties.multi_processor_count, launch.resident(properties.major))
        widths = (self.window.width, self.extra.width)
        rows, heads = self.q.shape[:2]
        return choose(Work(rows, heads, widths, launch.block_t), machine, DEFAULT_TARGET_CTAS)

    def ours(self, launch: AttendLaunch, splits: int) -> torch.Tensor:
        return sparse_decode(self.q, self.window, self.extra, self.sink, SCALE, launch=launch, splits=splits)[0]

    def upstream_views(self) -> tuple[torch.Tensor, torch.Tensor]:
        """KV as upstream's backend hands it to its kernels."""
        found = []
        for one in (self.window, self.extra):
            view = one.pages[:, : one.slots * SLOT_BYTES].view(len(one.pages), one.slots, 1, SLOT_BYTES)
            found.append(view.view(torch.float8_e4m3fn))
        return found[0], found[1]


def case(layer: str, rows: int, context: int, heads: int) -> Case:
    slots, width = LAYERS[layer]
    device = torch.device("cuda")
    return Case(
        torch.randn(rows, heads, HEAD_DIM, device=device).bfloat16(),
        candidates(rows, WINDOW, 256, pool(256, device)),
        candidates(rows, width(context), slots, pool(slots, device)),
        torch.randn(heads, device=device),
    )


def upstream(name: str, one: Case) -> Callable[[], object] | str:
    """A call of upstream's Triton or FlashInfer path on the same inputs, or why there is none."""
    try:
        from sglang.kernels.ops.attention import flash_mla_sm120, flash_mla_sm120_triton

        call = {
            "triton": flash_mla_sm120_triton.flash_mla_sparse_decode_triton,
            "flashinfer": flash_mla_sm120._flash_mla_flashinfer,
        }[name]
        window, extra = one.upstream_views()
        given = (
            one.q.unsqueeze(1), window, one.window.indices.unsqueeze(1), one.window.lens, one.sink, HEAD_DIM, SCALE,
            extra, one.extra.indices.unsqueeze(1), one.extra.lens,
        )  # fmt: skip
        call(*given)
        torch.cuda.synchronize()
    except (ImportError, RuntimeError, AttributeError, AssertionError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return lambda: call(*given)


def worst_error(heads: int, launch: AttendLaunch) -> float:
    """The largest difference of the compiled kernels from float64, over ragged rows, any splits and both page sizes."""
    worst = 0.0
    for layer in LAYERS:
        one = case(layer, 5, 32768, heads)
        one.window.lens.copy_(torch.tensor([128, 0, 1, 65, 64]))
        one.extra.lens.copy_(torch.tensor([one.extra.width, 0, 63, 1, 65]))
        one.extra.indices[0, 5::7] = -1
        window, extra = (
            Candidates(c.pages.cpu(), c.slots, c.indices.cpu(), c.lens.cpu()) for c in (one.window, one.extra)
        )
        exact, _ = reference.attend(one.q.cpu(), window, extra, one.sink.cpu(), SCALE)
        size = exact.abs().max().item()
        for splits in (1, 3, 7, one.splits(launch)):
            worst = max(worst, (one.ours(launch, splits).cpu().double() - exact).abs().max().item() / size)
    return worst


def differing_replays(heads: int, launch: AttendLaunch, rows: int = 96) -> int:
    """Replays of a captured graph, of :data:`REPLAYS`, whose result is not the first one's to the bit."""
    one = case("C4", rows, 32768, heads)
    splits = one.splits(launch)
    one.ours(launch, splits)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = one.ours(launch, splits)
    graph.replay()
    first = out.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(REPLAYS):
        graph.replay()
        differing += (out.view(torch.int16) != first.view(torch.int16)).any()
    return int(differing)


def measure(copy: float, heads: int, launch: AttendLaunch) -> Iterator[Row | str]:
    """Rows of every kernel and size; a text where a baseline cannot be measured, and why. ``copy``: GB/s."""
    for layer in LAYERS:
        for context in CONTEXTS:
            for rows in ROWS:
                one = case(layer, rows, context, heads)
                splits = one.splits(launch)
                calls: dict[str, Callable[[], object] | str] = {
                    "ours": lambda one=one, splits=splits: one.ours(launch, splits),  # type: ignore[misc]
                    "upstream triton": upstream("triton", one),
                    "upstream flashinfer": upstream("flashinfer", one),
                }
                for name, call in calls.items():
                    if isinstance(call, str):
                        yield f"{name}, {layer}, {rows} rows at {context}: not measured ({call})"
                        continue
                    us = bench(call) * 1000
                    rate = one.bytes / us / 1e3
                    yield Row(name, layer, rows, context, splits if name == "ours" else 0, us, rate, rate / copy)
