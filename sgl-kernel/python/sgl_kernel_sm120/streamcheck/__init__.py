"""A happens-before checker for programs of CUDA streams, events and graphs, without a GPU.

A program runs unmodified on CPU tensors. ``torch.cuda``'s streams, events and graphs are stand-ins that keep vector
clocks; every operation notes which memory it reads and writes, and on which stream. Two uses of the same memory, one of
them a write, without an order between them are a race, whatever this run happened to compute.

with checking() as check:
    program()
for finding in check.findings:
    print(finding)

| Module | What it does |
|---|---|
| :mod:`.clock` | vector clocks |
| :mod:`.machine` | streams, order, uses of memory, and the comparison |
| :mod:`.buffers` | storages, their names and lifetime, bytes that a view covers |
| :mod:`.allocator` | PyTorch's caching allocator at its worst |
| :mod:`.capture`, :mod:`.graph` | capture and replay |
| :mod:`.fakes` | ``torch.cuda``'s names |
| :mod:`.recorder` | PyTorch's operations, from their schemas |
| :mod:`.kernels` | other kernels, as declared |
| :mod:`.launches` | Triton kernels, from their source |
| :mod:`.findings`, :mod:`.fixes` | reports |
| :mod:`.diagram` | a picture of a run |
"""

from sgl_kernel_sm120.streamcheck.check import Check, checking
from sgl_kernel_sm120.streamcheck.findings import Finding, Kind

__all__ = ["Check", "Finding", "Kind", "checking"]
