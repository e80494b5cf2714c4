"""The picture of a captured program."""

import torch

from sgl_kernel_sm120.streamcheck import checking
from sgl_kernel_sm120.streamcheck.diagram import drawn

EXPECTED = """
main      side      other
ones
●─────────▶
add_      │
●───────────────────▶   after ones
│         mul       │
│         │         sum
◀───────────────────●
◀─────────●
zeros
"""


def test_operations_waits_and_what_of_a_stream_is_waited_for():
    with checking() as check:
        side, other = torch.cuda.Stream(name="side"), torch.cuda.Stream(name="other")
        graph, main = torch.cuda.CUDAGraph(), torch.cuda.Stream(name="main")
        with torch.cuda.graph(graph, stream=main):
            value, second = torch.ones(4), torch.ones(4)
            side.wait_stream(main)
            ready = main.record_event()
            second.add_(1)
            other.wait_event(ready)
            with torch.cuda.stream(side):
                product = value.mul(2)
            with torch.cuda.stream(other):
                value.sum()
            main.wait_stream(other)
            main.wait_stream(side)
            torch.zeros(4)
            del product
    assert check.findings == []
    assert graph.graph is not None
    assert drawn(graph.graph.entries, ["main", "side", "other"], width=10) == EXPECTED.strip("\n")
