"""Upstream's prefill graph: segments with eager attention between them, in which layers overlap whatever their rows."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch

from harness.dsv4 import layer
from harness.streams import mutants
from harness.streams.session import Case, Seen, Session, context, session


def findings(historical: bool = False) -> list[dict[str, Any]]:
    """Capture and replay a prefill of four requests; ``historical``: with upstream's order before the fix."""
    (mutant,) = (one for one in mutants.MUTANTS if "#36547" in one.name)
    with session(Case("EXTEND", (4,))) as one, contextlib.ExitStack() as stack:
        if historical:
            stack.enter_context(mutant.change.applied(one.check.kernels))
        _run(one)
    return [asdict(Seen.of(finding)) for finding in one.check.findings]


def streams() -> list[str]:
    """On which streams the segments have operations."""
    with session(Case("EXTEND", (4,))) as one:
        segments = _run(one)
    return sorted({operation.lane.name for segment in segments for operation in segment.graph.operations})


def _run(one: Session) -> list[Any]:
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import breakable_cuda_graph as breakable
    from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import context as breakable_context
    from sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph import context_manager
    from sglang.srt.models import deepseek_v4

    # Registered as an operator for CUDA alone; here the function itself.
    attend = breakable.eager_on_graph(inspect.unwrap(deepseek_v4.deepseek_v4_attention_with_output))
    batch = one.batch(4)
    batch.global_num_token_non_padded_cpu = len(batch.positions)
    attention = [each.attn_mqa for each in one.model.attention]
    graph = breakable.BreakableCUDAGraph()
    with (
        context(one.backend),
        mock.patch.object(breakable, "get_device_module", return_value=torch.cuda),
        mock.patch.object(deepseek_v4, "bcg_deepseek_v4_attention_with_output", attend),
        mock.patch.object(breakable, "_is_stream_capturing", lambda stream: stream.lane.graph is not None),
        breakable_context.enable_breakable_cuda_graph(),
        context_manager.set_tc_piecewise_forward_context(batch, attention, None, [], []),
        one.check.one_program("prefill"),
        one.main,
    ):
        one.backend.init_forward_metadata_for_breakable_cuda_graph_capture(batch)
        for _ in range(2):
            torch.cuda.synchronize()
            one.layers(batch)
        with breakable.BreakableCUDAGraphCapture(graph, pool=torch.cuda.graph_pool_handle(), stream=one.main):
            kept = one.layers(batch)
        for _ in range(2):
            one.x[: len(batch.positions)].copy_(torch.zeros(len(batch.positions), layer.HIDDEN))
            graph.replay()
        kept.sum()
    return graph._segments
