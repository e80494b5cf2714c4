"""What Triton's interpreter gets wrong is still wrong, and what we do about it is right.

When the first two fail, triton has mended its interpreter, and ``UPCAST`` can go.
"""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from sgl_kernel_sm120.interpret import to_bf16


def interpreted(function):
    return InterpretedFunction(function)


def _dot(a, b, out):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def _cast(x, out):
    i = tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


def _round(x, out):
    i = tl.arange(0, 1024)
    tl.store(out + i, to_bf16(tl.load(x + i), True))


def test_a_dot_of_bf16_is_garbage():
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.zeros(16, 16)
    interpreted(_dot)[(1,)](a, b, out)
    assert (out - a.float() @ b.float()).abs().max() > 1


def test_a_cast_to_bf16_cuts_the_low_bits_off():
    x, out = torch.rand(1024) + 1, torch.zeros(1024, dtype=torch.bfloat16)
    interpreted(_cast)[(1,)](x, out)
    assert (out.float() <= x).all()
    assert (out != x.bfloat16()).any()


def test_to_bf16_rounds_to_nearest_even_as_torch_does():
    x = torch.randn(1024) * 10 ** (torch.randn(1024) * 3)
    x[:6] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, 2.0**-120])  # ties, zeros, a small one
    out = torch.zeros(1024, dtype=torch.bfloat16)
    interpreted(_round)[(1,)](x, out)
    assert torch.equal(out, x.bfloat16())


def test_a_kernel_knows_that_it_is_interpreted():
    from sgl_kernel_sm120.index_k.store import store_keys_kernel
    from sgl_kernel_sm120.interpret import is_interpreted

    assert is_interpreted(store_keys_kernel)
    assert not is_interpreted(triton.runtime.jit.JITFunction(_cast))
