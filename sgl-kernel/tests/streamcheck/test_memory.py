"""Memory that the host gives back while another stream uses it."""

from collections.abc import Callable

import torch

from sgl_kernel_sm120.streamcheck import Check, Kind, checking


def run(program: Callable[[], object]) -> Check:
    with checking() as check:
        program()
    return check


def freed(then: Callable[..., object], size: int = 4) -> Callable[[], object]:
    """A tensor that a side stream reads is dropped; ``then`` runs, and something new is allocated and written."""

    def program() -> torch.Tensor:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream(name="side")
        first = torch.ones(4)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            first.sum()
        kept = then(main, side, first)
        del first
        second = torch.ones(size)
        main.wait_stream(side)
        del kept
        return second

    return program


def test_a_block_that_is_still_read_may_not_be_handed_on():
    (finding,) = run(freed(lambda main, side, first: None)).findings
    assert finding.kind is Kind.REUSE
    assert finding.buffer.name() == "first"
    assert finding.other.name() == "second"
    assert finding.streams == ("side", "main")
    drop = freed.__code__.co_firstlineno + 8
    assert f"the host drops it after test_memory.py:{drop} (program)" in str(finding)
    assert finding.fix == (
        "keep a reference to first until main has waited for side, or call first.record_stream(side) "
        f"(it waits at test_memory.py:{freed.__code__.co_firstlineno + 12} (program))"
    )


def test_any_size_is_as_bad_as_the_same_size():
    """Blocks are split and joined, and a server's sizes are not those of the test."""
    assert len(run(freed(lambda main, side, first: None, size=1000)).findings) == 1


def test_a_reference_that_outlives_the_join_keeps_it():
    assert run(freed(lambda main, side, first: first)).findings == []


def test_record_stream_keeps_it():
    assert run(freed(lambda main, side, first: first.record_stream(side))).findings == []


def test_record_stream_of_another_stream_does_not():
    assert len(run(freed(lambda main, side, first: first.record_stream(main))).findings) == 1


def test_a_join_before_is_enough():
    assert run(freed(lambda main, side, first: main.wait_stream(side))).findings == []


def test_a_block_goes_back_to_the_stream_that_it_was_allocated_on():
    """What a side stream allocated is not handed to main."""

    def program() -> torch.Tensor:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            first = torch.ones(4)
            first.sum()
        del first
        return torch.ones(4)

    assert run(program).findings == []


def test_who_uses_new_memory_on_another_stream_waits_for_the_one_that_allocated_it():
    """The block's last user is main itself; the side stream has not seen that it is over."""

    def program() -> torch.Tensor:
        side = torch.cuda.Stream(name="side")
        old = torch.ones(4)
        old.sum()
        del old
        new = torch.empty(4)
        with torch.cuda.stream(side):
            new.fill_(1)
        torch.cuda.current_stream().wait_stream(side)
        return new

    (finding,) = run(program).findings
    assert finding.kind is Kind.REUSE
    assert finding.streams == ("main", "side")
    assert "let side wait for main" in finding.fix


def test_a_view_keeps_the_whole():
    def program() -> None:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        whole = torch.ones(4)
        part = whole[:2]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            whole.sum()
        del whole
        torch.ones(4)
        main.wait_stream(side)
        del part

    assert run(program).findings == []


def test_names_follow_a_value_out_of_the_function_that_made_it():
    def inner() -> torch.Tensor:
        value = torch.ones(4)
        value.add_(1)
        return value

    def program() -> None:
        outer = inner()
        with torch.cuda.stream(torch.cuda.Stream()):
            outer.sum()

    (finding,) = run(program).findings
    assert finding.buffer.name() == "value / outer"


def test_labels_come_first():
    table = torch.ones(4)

    def program() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            table.add_(1)
        table.sum()

    with checking() as check:
        check.machine.label(table, "page table")
        program()
    assert check.findings[0].buffer.name() == "page table"
