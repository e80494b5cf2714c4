"""Graphs of a forward with side streams, one stream at a time held up, beside the same forward on one stream.

Where the order is right, no stall changes a bit. Where a wait is missing, the stream that should have waited runs ahead
of the one that is held up by a kernel that spins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from overlap_layers import Layers

NAMES = ("window store", "compressor", "indexer", "index queries", "index weights")
MAIN = "main"
INPUTS = 4  # sets of inputs in turn, so that what an earlier replay left behind is seen


@dataclass(frozen=True)
class Outcome:
    """Of a batch and a stalled stream: replays, how many of them differed, how many buffers did at the end."""

    rows: int
    stalled: str
    replays: int
    differing: int
    buffers: int

    @property
    def good(self) -> bool:
        return not self.differing and not self.buffers


@contextlib.contextmanager
def stalled(layers: Layers, stream: Any | None, spin: Callable[[], None], main: bool = False) -> Iterator[None]:
    """While a forward is captured: ``spin`` runs first whenever ``stream`` is entered; with ``main``, on the main
    stream before the queries' norm and before their last projection."""
    enter = torch.cuda.stream

    @contextlib.contextmanager
    def entered(one: Any) -> Iterator[None]:
        with enter(one):
            if one is stream:
                spin()
            yield

    hooks = []
    if main:
        for one in layers.attention:
            hooks += [module.register_forward_pre_hook(lambda *_: spin()) for module in (one.q_norm, one.wq_b)]
    with mock.patch.object(torch.cuda, "stream", entered):
        yield
    for hook in hooks:
        hook.remove()


@contextlib.contextmanager
def one_stream(layers: Layers) -> Iterator[None]:
    """Without side streams, as where overlap is off."""
    kept = [one.alt_streams for one in layers.attention]
    for one in layers.attention:
        one.alt_streams = None
    yield
    for one, streams in zip(layers.attention, kept, strict=True):
        one.alt_streams = streams


def captured(layers: Layers, batch: Any, x: torch.Tensor, pool: Any) -> tuple[Any, torch.Tensor]:
    """A graph of the forward and its output, as upstream's runner captures it: two passes first."""
    from sglang.srt.model_executor.runner_utils import capture_mode

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with mock.patch.object(capture_mode, "is_capture_mode", True), torch.no_grad():
        with layers.capturing(batch), torch.cuda.stream(stream):
            for _ in range(2):
                torch.cuda.synchronize()
                layers.forward(batch, x)
                layers.backend.on_after_cuda_graph_warmup()
                layers.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        torch.cuda.synchronize()
        with layers.capturing(batch), torch.cuda.graph(graph, pool=pool, stream=stream) as kept:
            out = layers.forward(batch, x)
            if kept is not None:  # the checker's stand-in wants to know what is meant to stay
                kept.append(out)
    return graph, out


def outcomes(layers: Layers, streams: list[Any], rows: int, replays: int, cycles: int) -> Iterator[Outcome]:
    """Capture ``rows`` rows on one stream, then with overlap and each stream stalled in turn; replay and compare."""
    batch, pool = layers.batch(rows), torch.cuda.graph_pool_handle()
    inputs = torch.randn(INPUTS, rows, layers.sizes.hidden, device=layers.device).bfloat16()
    x = inputs[0].clone()
    with one_stream(layers):
        graph, out = captured(layers, batch, x, pool)
    layers.fill(batch)
    expected = []
    for values in inputs:
        x.copy_(values)
        graph.replay()
        expected.append(out.clone())
    stored = [buffer.clone() for buffer in layers.buffers()]
    for name, stream in ((MAIN, None), *zip(NAMES, streams, strict=True)):
        with stalled(layers, stream, lambda: torch.cuda._sleep(cycles), main=name == MAIN):
            graph, out = captured(layers, batch, x, pool)
        layers.fill(batch)
        differing = torch.zeros((), dtype=torch.int64, device=layers.device)
        for replay in range(replays):
            x.copy_(inputs[replay % INPUTS])
            graph.replay()
            differing += (out != expected[replay % INPUTS]).any()
        x.copy_(inputs[-1])
        graph.replay()
        torch.cuda.synchronize()
        buffers = sum(
            int(not torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
            for one, other in zip(layers.buffers(), stored, strict=True)
        )
        yield Outcome(rows, name, replays, int(differing), buffers)
