"""Vector clocks against the definition: one use happens before another if a path of edges leads from it."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_kernel_sm120.streamcheck import Kind, checking

STREAMS, TENSORS, EVENTS = 3, 2, 3
step = st.one_of(
    st.tuples(st.just("use"), st.integers(0, STREAMS - 1), st.integers(0, TENSORS - 1), st.booleans()),
    st.tuples(st.just("record"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("join"), st.integers(0, STREAMS - 1), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("host"), st.integers(0, STREAMS - 1)),
)


@dataclass
class Node:
    """A use, and the nodes that it comes directly after."""

    tensor: int
    write: bool
    stream: int
    after: set[int] = field(default_factory=set)


def by_definition(program: list[tuple]) -> set[tuple[int, int, int]]:
    """Of every pair of uses in conflict without a path: tensor, and both streams in the order of launches."""
    nodes: list[Node] = []
    front: list[set[int]] = [set() for _ in range(STREAMS)]  # what a stream's next use comes after
    events: list[set[int]] = [set() for _ in range(EVENTS)]
    host: set[int] = set()
    for name, stream, *rest in program:
        if name == "use":
            nodes.append(Node(rest[0], rest[1], stream, front[stream] | host))
            front[stream] = {len(nodes) - 1}
        elif name == "record":
            events[rest[0]] = set(front[stream])
        elif name == "wait":
            front[stream] |= events[rest[0]]
        elif name == "join":
            front[stream] |= front[rest[0]]
        else:
            host |= front[stream]
    found = set()
    for place, node in enumerate(nodes):
        before, todo = set(), list(node.after)
        while todo:
            one = todo.pop()
            if one not in before:
                before.add(one)
                todo += nodes[one].after
        for other in range(place):
            first = nodes[other]
            if first.tensor == node.tensor and (first.write or node.write) and other not in before:
                found.add((node.tensor, first.stream, node.stream))
    return found


def by_the_checker(program: list[tuple]) -> set[tuple[int, int, int]]:
    tensors = [torch.zeros(4) for _ in range(TENSORS)]
    with checking() as check:
        streams = [torch.cuda.Stream(name=str(n)) for n in range(STREAMS)]
        events = [torch.cuda.Event() for _ in range(EVENTS)]
        for n, tensor in enumerate(tensors):
            check.machine.label(tensor, str(n))
        for name, stream, *rest in program:
            if name == "use":
                with torch.cuda.stream(streams[stream]):
                    tensors[rest[0]].zero_() if rest[1] else tensors[rest[0]].max()
            elif name == "record":
                events[rest[0]].record(streams[stream])
            elif name == "wait":
                streams[stream].wait_event(events[rest[0]])
            elif name == "join":
                streams[stream].wait_stream(streams[rest[0]])
            else:
                streams[stream].synchronize()
    races = [finding for finding in check.findings if finding.kind is Kind.RACE]
    return {(int(one.buffer.name()), *map(int, one.streams)) for one in races}


@settings(max_examples=300, deadline=None)
@given(st.lists(step, max_size=14))
def test_a_race_is_found_where_there_is_no_path_and_only_there(program: list[tuple]):
    assert by_the_checker(program) == by_definition(program)
