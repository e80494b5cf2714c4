"""``benchmark/kernels/overlap_stress.py`` under the checker: what it captures and replays, which stream it holds up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness.dsv4 import layer
from harness.streams import ops
from harness.streams.model import STREAMS
from sgl_kernel_sm120.streamcheck import checking
from sgl_kernel_sm120.streamcheck.fakes import FakeStream
from sgl_kernel_sm120.streamcheck.graph import Operation
from sgl_kernel_sm120.streamcheck.launches import declared_by_source

BENCHMARKS = Path(__file__).parents[3] / "benchmark" / "kernels"


def stress(rows: int) -> dict[str, Any]:
    """One batch with all its stalls: ``stalled``, the streams that were named, ``spins``, those that spun, in the order
    of the captures, and ``findings``."""
    sys.path.append(str(BENCHMARKS))
    import overlap_layers
    import overlap_stress

    def spin(cycles: int) -> None:
        """Hold the stream up."""

    with layer.on_sm120(), checking() as check, ops.declared(check.kernels), declared_by_source(check.kernels):
        overlap_layers.settle("cpu")
        streams = [FakeStream(name=name) for name in STREAMS]
        sizes = overlap_layers.Sizes(hidden=256, q_rank=64, o_rank=32, context=512)
        with check.paused():
            layers = overlap_layers.Layers(sizes, rows, streams, "cpu")
        with mock.patch.object(torch.cuda, "_sleep", check.kernels.declared(spin, "spin", ())):
            found = list(overlap_stress.outcomes(layers, streams, rows, replays=2, cycles=1))
    spins = [entry.lane.name for entry in check.machine.log if isinstance(entry, Operation) and entry.name == "spin"]
    return {
        "stalled": [one.stalled for one in found],
        "spins": list(dict.fromkeys(name if name in STREAMS else "main" for name in spins)),
        "findings": [str(finding) for finding in check.findings],
    }
