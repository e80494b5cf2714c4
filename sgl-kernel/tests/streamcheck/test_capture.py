"""Capture and replay: what of an order is left in a graph."""

from collections.abc import Callable
from typing import Any

import torch

from sgl_kernel_sm120.streamcheck import Finding, Kind, checking


def captured(program: Callable[[Any, Any], object]) -> list[Finding]:
    """Capture ``program(main, side)``, replay it twice."""
    with checking() as check:
        side, graph = torch.cuda.Stream(name="side"), torch.cuda.CUDAGraph(name="graph")
        with torch.cuda.graph(graph):
            program(torch.cuda.current_stream(), side)
        graph.replay()
        graph.replay()
    return check.findings


def kinds(findings: list[Finding]) -> set[Kind]:
    return {finding.kind for finding in findings}


def forked(main: Any, side: Any) -> None:
    value = torch.ones(4)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        value.add_(1)
    main.wait_stream(side)
    value.add_(1)


def test_a_fork_and_its_join_are_clean_in_capture_and_replay():
    assert captured(forked) == []


def test_the_hosts_order_is_not_in_the_graph():
    def program(main: Any, side: Any) -> None:
        value = torch.ones(4)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            value.add_(1)
        side.synchronize()
        value.sum()
        main.wait_stream(side)

    findings = captured(program)
    assert kinds(findings) == {Kind.ILLEGAL, Kind.RACE}
    assert "the host waits for stream side while graph is being captured" in str(findings[0])


def test_work_on_a_stream_that_was_not_forked_is_outside():
    def program(main: Any, side: Any) -> None:
        with torch.cuda.stream(side):
            torch.ones(4)

    findings = captured(program)
    assert kinds(findings) == {Kind.OUTSIDE}
    assert "on stream side is not part of the capture of graph" in findings[0].missing


def test_a_fork_without_a_join_does_not_end():
    def program(main: Any, side: Any) -> None:
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.ones(4)

    (finding,) = captured(program)
    assert finding.kind is Kind.UNJOINED
    assert "let capture of graph wait for side" in finding.fix


def test_an_event_from_before_the_capture_is_no_order_in_it():
    with checking() as check:
        before = torch.cuda.current_stream().record_event()
        with torch.cuda.graph(torch.cuda.CUDAGraph(name="graph")):
            torch.cuda.current_stream().wait_event(before)
    (finding,) = check.findings
    assert finding.kind is Kind.ILLEGAL
    assert "waits for an event from before the capture" in finding.missing


def test_replays_are_ordered_by_the_streams_they_are_launched_on():
    state = torch.zeros(4)

    def replayed(join: bool) -> list[Finding]:
        with checking() as check:
            graph, other = torch.cuda.CUDAGraph(name="graph"), torch.cuda.Stream(name="other")
            with torch.cuda.graph(graph):
                state.add_(1)
            graph.replay()
            if join:
                other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                state.zero_()
        return check.findings

    assert replayed(join=True) == []
    (finding,) = replayed(join=False)
    assert finding.kind is Kind.RACE
    assert finding.first.replay == "graph"


def two_graphs(order: bool, shared: bool) -> list[Finding]:
    with checking() as check:
        pool, other = torch.cuda.graph_pool_handle(), torch.cuda.Stream(name="other")
        graphs = [torch.cuda.CUDAGraph(name=name) for name in ("large", "small")]
        for graph in graphs:
            with torch.cuda.graph(graph, pool=pool if shared else None):
                torch.ones(4).sum()
        graphs[0].replay()
        if order:
            other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            graphs[1].replay()
    return check.findings


def test_graphs_of_one_pool_may_not_run_at_once():
    (finding,) = two_graphs(order=False, shared=True)
    assert finding.kind is Kind.GRAPHS
    assert "small is replayed on other while large, of the same pool" in finding.missing
    assert two_graphs(order=True, shared=True) == []
    assert two_graphs(order=False, shared=False) == []


class Cache:
    """A buffer that is made when it is first asked for."""

    value: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.value is None:
            self.value = torch.zeros(4)
        return self.value


def test_what_is_allocated_in_a_capture_and_used_by_another_is_found():
    cache = Cache()
    with checking() as check:
        pool = torch.cuda.graph_pool_handle()
        for name in ("large", "small"):
            with torch.cuda.graph(torch.cuda.CUDAGraph(name=name), pool=pool):
                cache.get().sum()
    (finding,) = check.findings
    assert finding.kind is Kind.LAZY
    assert finding.buffer.name() == "self.value"
    assert "allocated while large was being captured and is used by small" in finding.missing
    assert finding.site[0].function == "get"


def test_what_was_allocated_before_is_not():
    cache = Cache()
    with checking() as check:
        cache.get()
        for name in ("large", "small"):
            with torch.cuda.graph(torch.cuda.CUDAGraph(name=name)):
                cache.get().sum()
    assert check.findings == []


def test_an_output_is_meant_to_be_read():
    for kept, expected in ((True, []), (False, [Kind.LAZY])):
        with checking() as check:
            graph = torch.cuda.CUDAGraph(name="graph")
            with torch.cuda.graph(graph) as outputs:
                result = torch.ones(4)
                if kept:
                    outputs.append(result)
            graph.replay()
            result.sum()
        assert [finding.kind for finding in check.findings] == expected


def test_in_a_capture_record_stream_keeps_a_block_to_its_end():
    def program(recorded: bool) -> Callable[[Any, Any], None]:
        def run(main: Any, side: Any) -> None:
            first = torch.ones(4)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                first.sum()
            if recorded:
                first.record_stream(side)
            del first
            torch.ones(4)
            main.wait_stream(side)

        return run

    assert captured(program(recorded=True)) == []
    assert kinds(captured(program(recorded=False))) == {Kind.REUSE}
