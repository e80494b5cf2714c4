"""Reads and writes of PyTorch's own operations, from their schemas."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sgl_kernel_sm120.streamcheck.buffers import span_of
from sgl_kernel_sm120.streamcheck.graph import Use
from sgl_kernel_sm120.streamcheck.machine import Machine

# They allocate, and leave what they allocated as it is.
FRESH = "aten::lift_fresh"  # torch.tensor(...), which allocates below the dispatcher
ALIASES = ("aten::_unsafe_view", FRESH, "aten::detach", "aten::alias")
EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


@dataclass(frozen=True)
class Schema:
    """Which arguments of an operation are written; whether it only makes views, or only allocates; whether its argument
    is the new memory itself."""

    written: frozenset[int | str]
    view: bool
    empty: bool
    fresh: bool


@functools.cache
def schema_of(operation: Any) -> Schema:
    written: set[int | str] = set()
    for place, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
    aliases = [one.alias_info for one in operation._schema.returns]
    name = operation._schema.name
    view = bool(aliases) and all(one is not None and not one.is_write for one in aliases)
    view = (view and not written) or name in ALIASES
    return Schema(frozenset(written), view and name != FRESH, name in EMPTY, name == FRESH)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in an argument: itself, in a sequence, or a module's parameter."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()


class Recorder(TorchDispatchMode):
    """Notes every operation's uses on ``machine``'s current stream. Inside a declared kernel ``depth`` is above 0: what
    that allocates for itself is none of the program's, and what else it touches is collected in ``touched``."""

    def __init__(self, machine: Machine):
        super().__init__()
        self.machine = machine
        self.depth = 0
        self.touched: set[tuple[int, bool]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = schema_of(func)
        machine = self.machine
        if schema.view:
            return result
        uses: list[Use] = []
        for key, value in (*enumerate(args), *kwargs.items()):
            write = key in schema.written
            if not schema.fresh:
                uses += [Use(machine.buffer_of(one), write, span_of(one)) for one in tensors(value) if one.numel()]
        for one in tensors(result):
            if not machine.known(one) and one.numel():
                buffer = machine.allocated(one, inside_kernel=self.depth > 0)
                if not schema.empty:
                    uses.append(Use(buffer, True, span_of(one)))
        if self.depth:
            self.touched |= {(use.buffer.number, use.write) for use in uses}
        elif not schema.empty and uses:
            machine.launch(func._schema.name.removeprefix("aten::"), uses)
        return result
