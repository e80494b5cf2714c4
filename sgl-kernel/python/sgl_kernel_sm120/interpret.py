"""Triton's interpreter, and what it computes wrongly.

With ``TRITON_INTERPRET=1`` set before triton is imported, kernels run on the CPU, one program after the other. Two of
its results are wrong in triton 3.8, silently: ``tl.dot`` of bf16 operands is garbage, and fp32 to bf16 cuts the low
bits off where a GPU rounds to nearest even. Kernels here therefore take a compile-time flag ``UPCAST``: operands of a
dot become fp32 (exact, they were bf16), and :func:`to_bf16` rounds by hand. Compiled kernels have it off.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction


def is_interpreted(kernel: Any) -> bool:
    """Whether ``kernel`` runs in the interpreter, in which case ``UPCAST`` must be on."""
    return not isinstance(kernel, JITFunction)


@triton.jit
def to_bf16(x, UPCAST: tl.constexpr):
    """fp32 to bf16, to nearest even. ``x``: finite fp32."""
    if UPCAST:
        bits = x.to(tl.int32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        x = (bits & -0x10000).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)
