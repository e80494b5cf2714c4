"""Times of the compiled kernels on a GPU, over batches, candidates and splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from sgl_kernel_sm120.sparse_mla.decode import sparse_decode
from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS, AttendLaunch
from sgl_kernel_sm120.sparse_mla.layout import HEAD_DIM, Candidates, page_bytes
from sgl_kernel_sm120.sparse_mla.split import Work
from sgl_kernel_sm120.tune.fit import Sample

ROWS = (1, 4, 16, 48, 96)
EXTRA = (64, 512, 1024)
SPLITS = (1, 2, 3, 5, 10, 20, 40)
POOL_SLOTS = 1 << 20  # 600 MB: more than any L2 cache
FLUSH_BYTES = 256 << 20


def candidates(rows: int, width: int, slots: int, pages: torch.Tensor) -> Candidates:
    """Random slots of a pool, all rows as long as the list."""
    indices = torch.randint(len(pages) * slots, (rows, width), dtype=torch.int32, device=pages.device)
    return Candidates(pages, slots, indices, torch.full((rows,), width, dtype=torch.int32, device=pages.device))


def pool(slots: int, device: torch.device, count: int = POOL_SLOTS) -> torch.Tensor:
    """Pages whose values and scales are ordinary numbers."""
    pages = torch.randint(0, 64, (count // slots, page_bytes(slots)), dtype=torch.uint8, device=device)
    pages[:, slots * 576 :] = 127
    return pages


def microseconds(call: Callable[[], object], repetitions: int = 20) -> float:
    """Median of a call, the L2 cache emptied before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    times = []
    for _ in range(repetitions):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return sorted(times)[len(times) // 2]


def samples(launch: AttendLaunch, heads: int, target_ctas: int) -> Iterator[Sample]:
    device = torch.device("cuda")
    window_pages, extra_pages = pool(256, device), pool(64, device)
    sink = torch.zeros(heads, device=device)
    for rows in ROWS:
        q = torch.randn(rows, heads, HEAD_DIM, device=device).bfloat16()
        window = candidates(rows, 128, 256, window_pages)
        for width in EXTRA:
            extra = candidates(rows, width, 64, extra_pages)
            work = Work(rows, heads, (128, width), launch.block_t)
            for splits in SPLITS:
                if splits > min(work.tiles, MAX_SPLITS) or (splits > 1 and work.programs * splits > target_ctas):
                    continue

                def call(
                    q: torch.Tensor = q, window: Candidates = window, extra: Candidates = extra, splits: int = splits
                ) -> object:
                    return sparse_decode(q, window, extra, sink, HEAD_DIM**-0.5, launch=launch, splits=splits)

                yield Sample(work, splits, microseconds(call))
