"""Kernels that are declared, and Triton kernels, whose source declares them."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from sgl_kernel_sm120.index_k import decode_logits, prefill_logits, query, store
from sgl_kernel_sm120.sparse_mla import attend, merge
from sgl_kernel_sm120.streamcheck import Check, Kind, checking
from sgl_kernel_sm120.streamcheck.graph import Operation
from sgl_kernel_sm120.streamcheck.kernels import DeclarationError, UndeclaredAccess
from sgl_kernel_sm120.streamcheck.launches import declared_by_source, pointers_of


def copy(source: torch.Tensor, target: torch.Tensor, scale: float = 1.0) -> None:
    target.copy_(source.float() * scale)


def uses(check: Check) -> list[tuple[str, set[str], set[str]]]:
    """Per operation: its name, what it writes and what it reads."""
    return [
        (
            entry.name,
            {use.buffer.name() for use in entry.uses if use.write},
            {use.buffer.name() for use in entry.uses if not use.write},
        )
        for entry in check.machine.log
        if isinstance(entry, Operation)
    ]


def labelled(check: Check, **tensors: torch.Tensor) -> list[torch.Tensor]:
    for name, tensor in tensors.items():
        check.machine.label(tensor, name)
    return list(tensors.values())


@pytest.mark.parametrize("run", [False, True])
def test_a_declared_kernel_is_one_operation(run: bool):
    with checking(run_kernels=run) as check:
        source, target = labelled(check, source=torch.ones(4), target=torch.zeros(4))
        check.machine.log.clear()
        check.kernels.declared(copy, "copy", writes=["target"], reads=["source"])(source, target, scale=2.0)
    assert uses(check) == [("copy", {"target"}, {"source"})]
    assert target.tolist() == ([2.0] * 4 if run else [0.0] * 4)
    assert check.findings == []


def test_what_a_body_touches_beyond_its_declaration_is_an_error():
    with checking(run_kernels=True) as check:
        source, target = labelled(check, source=torch.ones(4), target=torch.zeros(4))
        with pytest.raises(UndeclaredAccess, match="copy writes target"):
            check.kernels.declared(copy, "copy", writes=[])(source, target)
        with pytest.raises(UndeclaredAccess, match="copy reads source"):
            check.kernels.declared(copy, "copy", writes=["target"], reads=[])(source, target)


def test_a_declaration_names_parameters():
    with (
        checking() as check,
        pytest.raises(
            DeclarationError, match=r"copy has no parameters \['out'\]; it has \['source', 'target', 'scale'\]"
        ),
    ):
        check.kernels.declared(copy, "copy", writes=["out"])


def test_what_a_kernel_returns_is_the_programs_and_its_temporaries_are_not():
    def double(source: torch.Tensor) -> torch.Tensor:
        return (source + source) * 1.0

    with checking() as check:
        (source,) = labelled(check, source=torch.ones(4))
        kernel = check.kernels.declared(double, "double", writes=(), allocates=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            result = kernel(source)
        result.sum()
    (race,) = [finding for finding in check.findings if finding.first and finding.first.operation == "double"]
    assert race.kind is Kind.RACE
    assert race.buffer.name() == "result"


def test_scratch_of_a_library_is_shared_by_all_streams():
    source = torch.ones(4)

    def gemm(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with checking() as check:
        kernel = check.kernels.declared(gemm, "gemm", writes=(), scratch=("GEMM workspace",), allocates=True)
        kept = [kernel(source)]
        with torch.cuda.stream(torch.cuda.Stream(name="side")):
            kept.append(kernel(source))
    (finding,) = check.findings
    assert finding.buffer.name() == "GEMM workspace"
    assert finding.streams == ("main", "side")
    assert finding.fix.startswith("give each stream its own GEMM workspace; or record an event on main")


def read_early(plan: torch.Tensor, target: torch.Tensor) -> None:
    """Reads its plan before it waits for the launch before it."""


def test_what_is_read_before_the_wait_for_the_launch_before_must_be_older():
    def found(between: bool) -> list[str]:
        with checking() as check:
            plan, target = torch.zeros(4), torch.zeros(4)
            plan.add_(1)
            if between:
                target.add_(1)
            check.kernels.declared(read_early, "top-k", writes=["target"], early=["plan"])(plan, target)
        return [finding.fix for finding in check.findings]

    assert found(between=True) == []
    assert found(between=False) == ["read plan after the wait for the launch before it, or launch without early start"]


@triton.jit
def _inner(pointer, value, out):
    tl.store(out + tl.load(pointer), value)
    return pointer + 1


@triton.jit
def _kernel(table, values, sums, out, n, BLOCK: tl.constexpr):
    place = tl.load(table + tl.program_id(0))
    address = values + place
    for _ in range(n):
        value = tl.load(address)
        address = _inner(address, value, out)
    tl.atomic_add(sums, 1)


def test_pointers_are_followed_from_the_source():
    found = pointers_of(_kernel.fn)
    assert found.reads - {"n"} == {"table", "values", "sums"}
    assert found.writes - {"n"} == {"out", "sums"}


def test_a_launch_of_a_triton_kernel_is_an_operation_with_its_pointers():
    with checking() as check, declared_by_source(check.kernels):
        table, values, sums, out = labelled(
            check, table=torch.zeros(4), values=torch.ones(4), sums=torch.zeros(1), out=torch.zeros(4)
        )
        check.machine.log.clear()
        _kernel[(4,)](table, values, sums, out, 1, BLOCK=16)
    assert uses(check) == [("_kernel", {"out", "sums"}, {"table", "values", "sums"})]


# What each of our kernels reads and writes: who adds to it says what another stream may no longer do beside it.
@pytest.mark.parametrize(
    ("kernel", "reads", "writes"),
    [
        (store.store_keys_kernel, {"kv", "plan", "weight", "freqs", "out_loc"}, {"keys"}),
        (query.prepare_query_kernel, {"q", "weight", "freqs", "positions"}, {"q_out", "weight_out"}),
        (decode_logits.decode_logits_kernel, {"q", "keys", "weights", "page_table", "lens"}, {"out"}),
        (prefill_logits.prefill_logits_kernel, {"q", "keys", "weights", "page_table", "lens"}, {"out"}),
        (
            attend.attend_kernel,
            {"q", "window", "window_indices", "window_lens", "extra", "extra_indices", "extra_lens", "sink"},
            {"out", "lse", "part_out", "part_lse"},
        ),
        (merge.merge_kernel, {"part_out", "part_lse", "sink"}, {"out", "lse"}),
    ],
)
def test_our_kernels(kernel: Any, reads: set[str], writes: set[str]):
    found, tensors = pointers_of(kernel.fn), reads | writes  # sizes and strides are part of addresses as well
    assert found.writes & tensors == writes
    assert found.reads & tensors == reads
