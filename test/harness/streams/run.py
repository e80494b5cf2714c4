"""Calls for :mod:`harness.lab`: what the checker finds in a case, in a seeded defect, in a rule that is broken."""

from __future__ import annotations

import contextlib
import os
import pkgutil
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch

from harness.streams import mutate, ops
from harness.streams.expected import Expected, removed
from harness.streams.mutants import MUTANTS
from harness.streams.session import Case, Seen, Session, session
from harness.streams.waits import REDUNDANT, WAITS
from sgl_kernel_sm120.streamcheck.fakes import FakeGraph, FakeStream
from sgl_kernel_sm120.streamcheck.graph import Operation


def findings(case: Case | None = None) -> list[dict[str, Any]]:
    """Every finding of ``case``."""
    with session(case or Case()) as one:
        one.everything()
    return [asdict(Seen.of(finding)) for finding in one.check.findings]


def touched(mode: str) -> set[str]:
    """Run what bodies declared kernels have, for one batch: raises where one touches what is not declared. The names of
    all declared kernels that were launched."""
    with session(Case(mode, capture=False), run_kernels=True) as one:
        one.eager(4)
    names = {entry.name for entry in one.check.machine.log if isinstance(entry, Operation)}
    return {name for name in names if "." in name or name in ops.FUNCTION_NAMES}


def unmet(bf16: bool) -> dict[str, list[str]]:
    """By mutant, with our kernels or without: what was expected of it and not found, and what was found instead."""
    problems: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        if mutant.bf16 is not bf16:
            continue
        case = Case(batches=(4, 2)[: mutant.graphs], warmups=mutant.warmups, experts=mutant.experts)
        environment = mock.patch.dict(os.environ, mutant.environment)
        with environment, session(case) as one, mutant.change.applied(one.check.kernels):
            one.everything()
        seen = [Seen.of(finding) for finding in one.check.findings]
        missing = [expected for expected in mutant.expected if not any(_fits(expected, one) for one in seen)]
        problems[mutant.name] = [str(expected) for expected in missing] + (
            [one.text for one in seen][:6] or ["nothing"] if missing else []
        )
    return problems


def cries(bf16: bool) -> dict[str, list[str]]:
    """By redundant wait: findings without it (there must be none), and the number without what makes it redundant."""
    found = {}
    for target, waits in REDUNDANT.items():
        for wait, other in waits.items():
            for taken in ((wait,), (wait, other)):
                change = mutate.Change(target, tuple(removed(one) for one in taken))
                with session(Case(batches=(4,))) as one, change.applied(one.check.kernels):
                    one.everything()
                found[" and ".join(taken)] = [str(finding) for finding in one.check.findings]
    return found


def in_parts(plan_late: bool) -> dict[str, Any]:
    """With our kernels and memory for the scores of one row at a time: how often rows were scored in a capture of four,
    and what was found; ``plan_late``: with top-k's plan made after the scores."""
    from sglang.srt.layers.attention.dsv4_sm120 import settings

    (late,) = (mutant for mutant in MUTANTS if "the plan of top-k" in mutant.name)
    with session(Case(batches=(4,))) as one, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(settings, "scratch_bytes", return_value=1))
        if plan_late:
            stack.enter_context(late.change.applied(one.check.kernels))
        graph = one.captured(4, torch.cuda.graph_pool_handle()).graph
    assert graph is not None
    scored = sum(operation.name == "decode_logits_kernel" for operation in graph.operations)
    return {"scored": scored, "found": [asdict(Seen.of(finding)) for finding in one.check.findings]}


def long_prefill() -> list[dict[str, Any]]:
    """Upstream's indexer for one long prompt, which scores FP8 keys by DeepGEMM's kernel for contiguous keys, in parts
    of what memory allows: here, of eight rows, in two."""
    from sglang.srt.layers.attention.dsv4 import indexer

    def fp8_mqa_logits(q, kv, weights, ks, ke, clean_logits, max_seqlen_k):
        return torch.empty(len(q), max_seqlen_k)

    with session(Case("EXTEND", (1,), capture=False)) as one, contextlib.ExitStack() as stack:
        scores = one.check.kernels.declared(fp8_mqa_logits, "fp8_mqa_logits", (), allocates=True)
        stack.enter_context(mock.patch("deep_gemm.fp8_mqa_logits", scores))
        stack.enter_context(mock.patch.object(indexer, "is_cuda", return_value=True))
        one.counts["EXTEND"] = 8
        one.eager(1, logits_budget_bytes=4096)
    return [asdict(Seen.of(finding)) for finding in one.check.findings]


def many_rows() -> list[str]:
    """Upstream's attention for more rows than FlashInfer's decode kernel takes, which is another kernel."""
    limit = "sglang.kernels.ops.attention.flash_mla_sm120.SM120_DECODE_MAX_TOKENS"
    with session(Case()) as one, mock.patch(limit, 2):
        one.everything()
    return [str(finding) for finding in one.check.findings]


def waits() -> dict[str, list[str]]:
    """Every wait and event in upstream's functions that fork, by function."""
    return {
        target: mutate.statements(pkgutil.resolve_name(target), "wait_stream", "wait_event", "record_event")
        for target in WAITS
    }


def misuse(bf16: bool) -> dict[str, list[dict[str, Any]]]:
    """Findings of replays that break a rule, by rule; the forward itself is as it should be."""

    def two_streams(one: Session, graphs: dict[int, FakeGraph]) -> None:
        one.replayed(4, graphs[4])
        one.main = FakeStream(name="other")
        one.replayed(2, graphs[2])

    def inputs(one: Session, graphs: dict[int, FakeGraph]) -> None:
        one.replayed(4, graphs[4])
        with FakeStream(name="copies"):
            one.x.zero_()

    def temporary(one: Session, graphs: dict[int, FakeGraph]) -> None:
        one.replayed(4, graphs[4])
        with one.main:
            one.chosen.sum()

    found = {}
    for rule, run in (("one stream", two_streams), ("inputs", inputs), ("outputs", temporary)):
        with session(Case()) as one:
            pool = torch.cuda.graph_pool_handle()
            graphs = {requests: one.captured(requests, pool) for requests in one.case.batches}
            run(one, graphs)
        found[rule] = [asdict(Seen.of(finding)) for finding in one.check.findings]
    return found


def _fits(expected: Expected, seen: Seen) -> bool:
    return (
        seen.kind == expected.kind
        and expected.buffer in seen.buffer
        and expected.streams in ((), seen.streams)
        and all(
            not part or any(part in line for line in lines)
            for part, lines in (
                (expected.first, seen.first),
                (expected.second, seen.second),
                (expected.site, seen.site),
            )
        )
    )


def operations(case: Case | None = None) -> list[tuple[str, str]]:
    """Stream and name of every operation of the last capture."""
    with session(case or Case()) as one:
        graph = one.captured(max(one.case.batches), torch.cuda.graph_pool_handle())
    assert graph.graph is not None
    return [(operation.lane.name, operation.name) for operation in graph.graph.operations]
