"""The reference against the formulas, written out: the kernels are only as right as it is."""

import math

import pytest
import torch

from kernel_cases import freqs
from sgl_kernel_sm120.index_k import reference


def test_hadamard_is_the_matrix_of_bit_parities():
    parity = torch.tensor([[(i & j).bit_count() % 2 for i in range(128)] for j in range(128)])
    matrix = (1 - 2 * parity).double() / math.sqrt(128)
    x = torch.randn(5, 3, 128, dtype=torch.float64)
    assert torch.allclose(reference.hadamard(x), x @ matrix.T, atol=1e-12)


def test_hadamard_keeps_products_and_undoes_itself():
    x, y = torch.randn(2, 7, 128, dtype=torch.float64)
    turned = reference.hadamard(x), reference.hadamard(y)
    assert torch.allclose((turned[0] * turned[1]).sum(-1), (x * y).sum(-1))
    assert torch.allclose(reference.hadamard(turned[0]), x)


def test_rope_turns_each_pair_of_the_last_64_by_its_angle():
    x = torch.randn(2, 4, 128, dtype=torch.float64)
    positions = torch.tensor([0, 9])
    turned = reference.rope(x, freqs(), positions)
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[..., :64], x[..., :64])
    for pair in range(32):
        angle = 9 * 10000.0 ** (-pair / 32)
        real, imag = x[1, :, 64 + 2 * pair], x[1, :, 65 + 2 * pair]
        expected = torch.complex(real, imag) * complex(math.cos(angle), math.sin(angle))
        assert torch.allclose(turned[1, :, 64 + 2 * pair], expected.real, atol=1e-5)
        assert torch.allclose(turned[1, :, 65 + 2 * pair], expected.imag, atol=1e-5)


def test_norm_has_unit_mean_square():
    x = 100 * torch.randn(3, 128, dtype=torch.float64)
    normed = reference.rms_norm(x, torch.ones(128), 0.0)
    assert torch.allclose(normed.square().mean(-1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 64, 70])
def test_logits_are_weighted_sums_of_rectified_products(length):
    q, keys = torch.randn(1, 16, 128, dtype=torch.float64), torch.randn(3, 64, 128, dtype=torch.float64)
    weights, table = torch.randn(1, 16, dtype=torch.float64), torch.tensor([[2, 0]], dtype=torch.int32)
    found = reference.logits(q, keys, weights, table, torch.tensor([length]))
    for n in range(length):
        key = keys[2 if n < 64 else 0, n % 64]
        expected = sum(weights[0, h] * max(0.0, float(q[0, h] @ key)) for h in range(16))
        assert abs(float(found[0, n] - expected)) < 1e-9
    assert found[0, length:].isneginf().all()
