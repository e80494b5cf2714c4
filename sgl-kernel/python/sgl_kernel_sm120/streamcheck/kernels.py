"""Kernels that are not PyTorch's operations: what they read and write is declared.

A declared kernel is one operation. Its body, if it is run at all, stands in for the kernel: what the body allocates and
drops inside is not the program's memory.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sgl_kernel_sm120.streamcheck.buffers import span_of
from sgl_kernel_sm120.streamcheck.graph import Use
from sgl_kernel_sm120.streamcheck.recorder import Recorder, tensors


class DeclarationError(ValueError):
    """A declaration does not fit the kernel's signature."""


class UndeclaredAccess(AssertionError):
    """A kernel's body touched something that its declaration leaves out."""


def _flat(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments by name, those that a signature gathers in a dictionary among them."""
    for name, value in arguments.items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value


@dataclass(frozen=True)
class Declaration:
    """``writes``: names of arguments that are written. ``reads``: of those that are read; None stands for all tensors.
    ``scratch``: process-wide memory that no argument shows. ``early``: arguments that are read before the wait for the
    launch before (programmatic dependent launch)."""

    name: str
    writes: frozenset[str]
    reads: frozenset[str] | None = None
    scratch: tuple[str, ...] = ()
    early: frozenset[str] = frozenset()


class Kernels:
    """Declared kernels of one recording. ``run``: whether their bodies run; if so, what they touch must be declared."""

    def __init__(self, recorder: Recorder, run: bool = False):
        self.recorder = recorder
        self.run = run

    def declared(
        self,
        body: Callable[..., Any],
        name: str,
        writes: Iterable[str],
        reads: Iterable[str] | None = None,
        scratch: tuple[str, ...] = (),
        early: Iterable[str] = (),
        allocates: bool = False,
    ) -> Callable[..., Any]:
        """``body`` as a kernel of that declaration. ``allocates``: it returns tensors of its own, so it always runs.

        Raises :class:`DeclarationError` where a name is no parameter of ``body``.
        """  # fmt: skip
        declaration = Declaration(
            name, frozenset(writes), None if reads is None else frozenset(reads), scratch, frozenset(early)
        )
        signature = inspect.signature(body)
        unknown = (declaration.writes | (declaration.reads or set()) | declaration.early) - set(signature.parameters)
        if unknown:
            raise DeclarationError(f"{name} has no parameters {sorted(unknown)}; it has {list(signature.parameters)}")

        @functools.wraps(body)
        def launch(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            return self.launch(declaration, bound, (lambda: body(*args, **kwargs)), self.run or allocates)

        return launch

    def launch(self, declaration: Declaration, arguments: dict[str, Any], body: Callable[[], Any], run: bool) -> Any:
        """One launch with ``arguments`` by name."""
        machine = self.recorder.machine
        uses = []
        for name, value in _flat(arguments):
            for tensor in tensors(value):
                if not tensor.numel():
                    continue
                buffer, span = machine.buffer_of(tensor), span_of(tensor)
                if name in declaration.writes:
                    uses.append(Use(buffer, True, span))
                if declaration.reads is None or name in declaration.reads:
                    uses.append(Use(buffer, False, span, name in declaration.early))
        uses += [Use(machine.shared(name), True) for name in declaration.scratch]
        result = None
        if run:
            result, made = self._inside(declaration, uses, body)
            uses += [Use(machine.buffer_of(tensor), True, span_of(tensor)) for tensor in made]
        machine.launch(declaration.name, uses, overlaps_previous=bool(declaration.early))
        return result

    def _inside(
        self, declaration: Declaration, uses: list[Use], body: Callable[[], Any]
    ) -> tuple[Any, list[torch.Tensor]]:
        recorder, machine = self.recorder, self.recorder.machine
        before = {buffer.number for buffer in machine.buffers.values()}
        recorder.depth += 1
        outer, recorder.touched = recorder.touched, set()
        try:
            result = body()
            touched = recorder.touched
        finally:
            recorder.depth -= 1
            recorder.touched = outer
        machine.reap()
        made = []
        for tensor in tensors(result):
            buffer = machine.buffer_of(tensor)
            if buffer.inside_kernel:
                buffer.inside_kernel = False
                made.append(tensor)
        declared = {(use.buffer.number, use.write) for use in uses}
        hidden = {(number, write) for number, write in touched if number in before} - declared
        hidden -= {(number, False) for number, write in declared if write}
        if hidden:
            names = {buffer.number: str(buffer) for buffer in machine.buffers.values()}
            said = [f"{'writes' if write else 'reads'} {names.get(number, number)}" for number, write in sorted(hidden)]
            raise UndeclaredAccess(f"{declaration.name} {'; '.join(said)}, which its declaration leaves out")
        return result, made
