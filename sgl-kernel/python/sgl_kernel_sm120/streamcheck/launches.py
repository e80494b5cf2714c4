"""Triton kernels: which of their pointers are read and written, from their source.

A pointer is a parameter, or what is computed from one: an address is followed through assignments and arithmetic until
``tl.load`` reads it or ``tl.store`` writes it. What was loaded is a value and no longer an address. Functions that the
kernel calls are followed as well.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import _disable_current_modes

from sgl_kernel_sm120.streamcheck.kernels import Declaration, Kernels

READS = ("load", "descriptor_load")
WRITES = ("store", "descriptor_store")
ATOMICS = "atomic_"
Names = frozenset[str]
NONE: Names = frozenset()


@dataclass
class Pointers:
    """Parameters that a kernel reads through, writes through, and returns addresses of."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    returns: Names = NONE


@functools.cache
def pointers_of(function: Callable[..., Any]) -> Pointers:
    """Of a kernel's Python function."""
    return _Follow(function).result


class _Follow(ast.NodeVisitor):
    """Which parameters every variable is an address of."""

    def __init__(self, function: Callable[..., Any]):
        self.globals = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        if not isinstance(definition, ast.FunctionDef):
            raise TypeError(f"{function} is not a function")
        arguments = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
        self.addresses: dict[str, Names] = {one.arg: frozenset({one.arg}) for one in arguments}
        self.result = Pointers()
        while True:  # a loop's body may use what it assigns further down
            before = dict(self.addresses)
            for statement in definition.body:
                self.visit(statement)
            if self.addresses == before:
                break

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.address(node.value)
        for target in node.targets:
            self._assign(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self.address(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, self.address(node.value))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.result.returns |= self.address(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.address(node)

    def _assign(self, target: ast.expr, value: Names) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                self._assign(one, value)
        elif isinstance(target, ast.Name):
            self.addresses[target.id] = self.addresses.get(target.id, NONE) | value

    def address(self, node: ast.AST) -> Names:
        """The parameters that an expression is an address of."""
        if isinstance(node, ast.Name):
            return self.addresses.get(node.id, NONE)
        if isinstance(node, ast.Compare):
            for one in ast.iter_child_nodes(node):
                self.address(one)
            return NONE
        if isinstance(node, ast.Call):
            return self._call(node)
        return NONE.union(*(self.address(one) for one in ast.iter_child_nodes(node)))

    def _call(self, node: ast.Call) -> Names:
        given = [self.address(one) for one in node.args]
        named = {one.arg or "": self.address(one.value) for one in node.keywords}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        # A method's object is an address as well: pointer.to(type).
        owner = self.address(node.func.value) if isinstance(node.func, ast.Attribute) else NONE
        pointer = given[0] if given else named.get("pointer", owner)
        if name in READS:
            self.result.reads |= pointer
            return NONE
        if name in WRITES:
            self.result.writes |= pointer
            return NONE
        if name.startswith(ATOMICS):
            self.result.reads |= pointer
            self.result.writes |= pointer
            return NONE
        called = _function(self._resolve(node.func))
        if called is None:
            return owner.union(*given, *named.values())
        return self._through(called, given, named)

    def _through(self, called: Callable[..., Any], given: list[Names], named: dict[str, Names]) -> Names:
        inner = pointers_of(called)
        bound = dict(zip(inspect.signature(called).parameters, given, strict=False)) | named
        for parameter, names in bound.items():
            if parameter in inner.reads:
                self.result.reads |= names
            if parameter in inner.writes:
                self.result.writes |= names
        return NONE.union(*(names for parameter, names in bound.items() if parameter in inner.returns))

    def _resolve(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            return self.globals.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._resolve(node.value), node.attr, None)
        return None


def _function(kernel: Any) -> Callable[..., Any] | None:
    """The Python function of a Triton function of the program; None of anything else."""
    function = getattr(kernel, "fn", None)
    return function if inspect.isfunction(function) and not function.__module__.startswith("triton.") else None


def _unseen(run: Callable[[], Any]) -> None:
    """The interpreter copies arguments to and fro, which says nothing of the kernel."""
    with _disable_current_modes():
        run()


@contextlib.contextmanager
def declared_by_source(kernels: Kernels) -> Iterator[None]:
    """Every Triton kernel that is launched inside is one operation with the pointers of its source. It runs where
    declared kernels do."""
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

    interpreted, compiled = GridExecutor.__call__, JITFunction.run

    def launched(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]
    ) -> None:
        parameters = inspect.signature(function).parameters
        given = {name: value for name, value in kwargs.items() if name in parameters}
        bound = inspect.signature(function).bind_partial(*args, **given).arguments
        found = pointers_of(function)
        declaration = Declaration(function.__name__, frozenset(found.writes), frozenset(found.reads))
        kernels.launch(declaration, bound, lambda: _unseen(run), run=kernels.run)

    def interpret(executor: Any, *args: Any, **kwargs: Any) -> None:
        launched(executor.fn, args, kwargs, lambda: interpreted(executor, *args, **kwargs))

    def compile_and_run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launched(kernel.fn, args, kwargs, lambda: compiled(kernel, *args, grid=grid, warmup=warmup, **kwargs))

    with (
        mock.patch.object(GridExecutor, "__call__", interpret),
        mock.patch.object(JITFunction, "run", compile_and_run),
    ):
        yield
