"""Order between streams, without graphs: what is a race and what is none."""

from collections.abc import Callable

import pytest
import torch

from sgl_kernel_sm120.streamcheck import Finding, Kind, checking


def found(program: Callable[[], object]) -> list[Finding]:
    with checking() as check:
        program()
    return check.findings


def crossing(order: Callable[..., object]) -> Callable[[], object]:
    """Write on one stream, let ``order`` bring order, read on another; the tensor was there before."""

    value = torch.zeros(4)

    def program() -> None:
        writer, reader = torch.cuda.Stream(name="writer"), torch.cuda.Stream(name="reader")
        with torch.cuda.stream(writer):
            value.add_(1)
            event = writer.record_event()
        order(writer, reader, event)
        with torch.cuda.stream(reader):
            value.sum()

    return program


@pytest.mark.parametrize(
    "order",
    [
        lambda writer, reader, event: reader.wait_stream(writer),
        lambda writer, reader, event: reader.wait_event(event),
        lambda writer, reader, event: event.wait(reader),
        lambda writer, reader, event: event.synchronize(),
        lambda writer, reader, event: writer.synchronize(),
        lambda writer, reader, event: torch.cuda.synchronize(),
    ],
    ids=["wait_stream", "wait_event", "event.wait", "event.synchronize", "stream.synchronize", "synchronize"],
)
def test_every_way_to_wait_is_an_order(order: Callable[..., object]):
    assert found(crossing(order)) == []


@pytest.mark.parametrize(
    "order",
    [
        lambda writer, reader, event: None,
        lambda writer, reader, event: writer.wait_stream(reader),
        lambda writer, reader, event: reader.wait_event(torch.cuda.Event()),
    ],
    ids=["nothing", "the other way round", "an event that was never recorded"],
)
def test_without_order_it_is_a_race(order: Callable[..., object]):
    (finding,) = found(crossing(order))
    assert finding.kind is Kind.RACE
    assert finding.streams == ("writer", "reader")
    assert finding.first.operation == "add_"
    assert finding.second.operation == "sum"


def test_an_event_orders_what_was_before_it_only():
    def program() -> torch.Tensor:
        side = torch.cuda.Stream(name="side")
        value = torch.zeros(4)
        event = torch.cuda.current_stream().record_event()
        value.add_(1)
        with torch.cuda.stream(side):
            side.wait_event(event)
            value.mul_(2)
        return value

    (finding,) = found(program)
    assert (finding.first.operation, finding.second.operation) == ("add_", "mul_")


def test_order_is_handed_on():
    """From main over one side stream to another."""

    def program() -> torch.Tensor:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        value = torch.zeros(4)
        one.wait_stream(torch.cuda.current_stream())
        two.wait_stream(one)
        with torch.cuda.stream(two):
            value.add_(1)
        torch.cuda.current_stream().wait_stream(two)
        return value + 1

    assert found(program) == []


def test_two_reads_need_no_order():
    value = torch.zeros(4)

    def program() -> list[torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            one = value + 1
        return [one, value + 2]

    assert found(program) == []


def test_a_stream_is_in_order_with_itself():
    def program() -> torch.Tensor:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            value = torch.zeros(4)
        with torch.cuda.stream(side):
            return value.add_(1)

    assert found(program) == []


def columns(first: slice, second: slice) -> Callable[[], object]:
    value = torch.zeros(4, 8)

    def program() -> None:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(one):
            value[:, first].fill_(1)
        with torch.cuda.stream(two):
            value[:, second].fill_(2)

    return program


def test_parts_of_a_tensor_that_share_no_byte_may_be_written_at_once():
    assert found(columns(slice(0, 4), slice(4, 8))) == []


def test_parts_that_share_a_byte_may_not():
    (finding,) = found(columns(slice(0, 5), slice(4, 8)))
    assert finding.kind is Kind.RACE


def test_rows_are_parts_as_well():
    value = torch.zeros(4, 8)

    def program(rows: slice) -> Callable[[], None]:
        def run() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                value[:2].fill_(1)
            with torch.cuda.stream(torch.cuda.Stream()):
                value[rows].fill_(2)

        return run

    assert found(program(slice(2, 4))) == []
    assert len(found(program(slice(1, 4)))) == 1


def test_a_defect_in_a_loop_is_one_finding():
    value = torch.zeros(4)

    def program() -> None:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        for _ in range(3):
            with torch.cuda.stream(one):
                value.add_(1)
            with torch.cuda.stream(two):
                value.mul_(2)

    findings = found(program)
    assert {finding.first.operation for finding in findings} == {"add_", "mul_"}
    assert len(findings) == 2
