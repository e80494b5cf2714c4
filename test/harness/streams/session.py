"""Upstream's whole forward of three attention layers under the checker: warmed up, captured per batch size, replayed.

The order is that of upstream's runner: batch sizes from the largest, all in one pool; for each the metadata outside the
graph, two passes without a graph, then the capture with the metadata's upgrade in it; replays after new inputs were
copied. Kernels do not run: what is checked is which memory they use and in which order.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from harness.dsv4 import layer, models
from harness.streams import ops
from harness.streams.experts import Experts
from harness.streams.model import STREAMS, Model
from sgl_kernel_sm120.streamcheck import Check, Finding, checking
from sgl_kernel_sm120.streamcheck.fakes import FakeGraph, FakeStream
from sgl_kernel_sm120.streamcheck.launches import declared_by_source
from sgl_kernel_sm120.streamcheck.source import Site

# Files whose lines reports name; layers and kernels in between are passed over.
FOCUS = (
    "srt/models/deepseek_v4",
    "srt/models/deepseek_v2",
    "srt/layers/attention/",
    "kernels/ops/attention/flash_mla_sm120",
    "sgl_kernel_sm120/index_k",
    "sgl_kernel_sm120/sparse_mla",
    "harness/streams/",
)
BEFORE = [1000, 255, 127, 30]  # tokens that each request has before the batch
DRAFTS = 3


@dataclass(frozen=True)
class Case:
    """What is run.

    ``mode``: upstream's ``ForwardMode``. ``batches``: requests per captured batch, in the order of capture.
    ``capture``: upstream's capture mode, in which alone it overlaps. ``warmups``: passes before a capture. ``ours``:
    with our hooks for overlap, also where no other of ours is on. ``layers``: by number, of the model's three.
    ``experts``: with shared experts after each, on the first side stream, as upstream's model has them.
    """

    mode: str = "DECODE"
    batches: tuple[int, ...] = (4, 2)
    capture: bool = True
    warmups: int = 2
    ours: bool = False
    layers: tuple[int, ...] = (0, 1, 2)
    experts: bool = False


@dataclass(frozen=True)
class Seen:
    """A finding, as text that travels between processes; see :class:`Finding`. ``first``, ``second``, ``site``: for
    each line that leads there, innermost first, where it is and what it says."""

    kind: str
    buffer: str
    other: str
    streams: tuple[str, ...]
    first: list[str]
    second: list[str]
    site: list[str]
    text: str

    @staticmethod
    def of(finding: Finding) -> Seen:
        names = [one.name() if one else "" for one in (finding.buffer, finding.other)]
        uses = [_lines(access.site) if access else [] for access in (finding.first, finding.second)]
        return Seen(finding.kind, *names, finding.streams, *uses, _lines(finding.site), str(finding))


def _lines(site: Site) -> list[str]:
    return [f"{line}: {linecache.getline(line.file, line.number).strip()}" for line in site]


class Session:
    """A model under the checker; ``forward`` may be run as often as wanted."""

    def __init__(self, check: Check, case: Case):
        self.check, self.case = check, case
        self.streams = [FakeStream(name=name) for name in STREAMS]
        self.main = FakeStream(name="main")  # graphs are captured on a stream of their own
        check.machine.main.name = check.machine.main.captured_as = "default"
        with check.paused():
            self.model = Model(self.streams)
            self.experts = Experts(layer.HIDDEN, self.streams[0])
            self.x = torch.randn(64, layer.HIDDEN).bfloat16()
        for name, tensor in {"hidden states": self.x, **self.model.labels()}.items():
            check.machine.label(tensor, name)
        self.backend = self.model.backend
        self.counts = {"DECODE": 1, "TARGET_VERIFY": DRAFTS, "EXTEND": 2}
        rows = self.counts[case.mode] * max(case.batches)
        self.backend.init_cuda_graph_state(max(case.batches), rows)

    def batch(self, requests: int) -> Any:
        count = self.counts[self.case.mode]
        with self.check.paused():
            before = BEFORE[:requests]
            built = self.model._batch(self.case.mode, list(range(requests)), before, [count] * requests)
            if self.case.mode == "TARGET_VERIFY":
                # Upstream counts drafts on top of the length before them.
                built.seq_lens = torch.tensor(before, dtype=torch.int32)
                built.seq_lens_cpu = torch.tensor(before, dtype=torch.int32)
        for name in ("positions", "seq_lens", "out_cache_loc", "req_pool_indices"):
            self.check.machine.label(getattr(built, name), f"batch {name}")
        return built

    def layers(self, batch: Any) -> torch.Tensor:
        hidden = self.x[: len(batch.positions)]
        for number in self.case.layers:
            one = self.model.attention[number]
            hidden = one(hidden, batch.positions, batch)
            if self.case.experts:
                hidden = self.experts(hidden)
        return hidden

    def eager(self, requests: int, logits_budget_bytes: int | None = None) -> None:
        """A batch without a graph. ``logits_budget_bytes``: memory for index scores, as upstream finds it on a GPU."""
        batch = self.batch(requests)
        with self.main, context(self.backend):
            self.backend.init_forward_metadata(batch)
            if logits_budget_bytes is not None:
                self.backend.forward_metadata.indexer_metadata.mqa_logits_budget_bytes = logits_budget_bytes
            self.layers(batch)

    def captured(self, requests: int, pool: str) -> FakeGraph:
        batch, graph = self.batch(requests), FakeGraph(name=f"graph of {requests}")
        prefill = self.case.mode == "EXTEND"
        with context(self.backend):
            if prefill:
                self.backend.init_forward_metadata(batch)
            else:
                self.backend.init_forward_metadata_out_graph(batch, in_capture=True)

            def once() -> torch.Tensor:
                if not prefill:
                    self.backend.init_forward_metadata_in_graph(batch)
                return self.layers(batch)

            with self.main:
                for _ in range(self.case.warmups):
                    torch.cuda.synchronize()
                    once()
                    self.backend.on_after_cuda_graph_warmup()
                    if not prefill:
                        self.backend.init_forward_metadata_out_graph(batch, in_capture=True)
            with torch.cuda.graph(graph, pool=pool, stream=self.main) as outputs:
                outputs.append(once())
        self.chosen = self.backend.forward_metadata.core_metadata.c4_sparse_page_indices
        return graph

    def replayed(self, requests: int, graph: FakeGraph) -> None:
        batch = self.batch(requests)
        with self.main, context(self.backend):
            self.x[: len(batch.positions)].copy_(torch.zeros(len(batch.positions), layer.HIDDEN))
            if self.case.mode != "EXTEND":
                self.backend.init_forward_metadata_out_graph(batch)
            graph.replay()

    def everything(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        graphs = {requests: self.captured(requests, pool) for requests in self.case.batches}
        for _ in range(2):
            for requests, graph in graphs.items():
                self.replayed(requests, graph)


def _attach() -> None:
    """Our hooks for overlap, in a process whose plugins were loaded without them."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_pd import hooks

    rows = tuple(row for row in hooks.HOOKS if row.where == "dsv4_overlap")
    if hooks.not_live(rows):
        hooks.attach(rows)
        HookRegistry.apply_hooks()


@contextlib.contextmanager
def context(backend: Any) -> Iterator[None]:
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    with forward_context(ForwardContext(attn_backend=backend)):
        yield


@contextlib.contextmanager
def session(case: Case, run_kernels: bool = False) -> Iterator[Session]:
    """A session for ``case``: on an SM120 as far as upstream asks. ``run_kernels``: run the bodies of declared kernels,
    and raise where they touch what is not declared."""
    from sglang.srt.model_executor.runner_utils import capture_mode
    from sglang.srt.runtime_context import get_resources

    if case.ours:
        _attach()
    gc.freeze()  # what was imported is not searched at each capture
    with (
        layer.on_sm120(),
        checking(FOCUS, run_kernels) as check,
        ops.declared(check.kernels),
        declared_by_source(check.kernels),
        mock.patch.object(capture_mode, "is_capture_mode", case.capture),
        mock.patch.dict(get_resources().buffers, clear=True),  # of the process: as in one that has just started
    ):
        models.settings(dsa_topk_backend="sgl-kernel", speculative_num_draft_tokens=DRAFTS)
        yield Session(check, case)
