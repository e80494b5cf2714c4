"""Defects put into upstream's functions, and ours, while they run: their source is changed in memory, lines stay."""

from __future__ import annotations

import ast
import contextlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from sgl_kernel_sm120.streamcheck.kernels import Kernels


class NoSuchStatement(LookupError):
    """The source has no statement like the one that an edit names: upstream changed, or the edit is wrong."""


@dataclass(frozen=True)
class Edit:
    """A change at every statement that reads as ``at``, or starts so where ``at`` ends in "...".

    ``instead``: what stands there instead, the statement itself wherever it says ``SAME``.
    """

    at: str
    instead: str = ""

    def matches(self, statement: ast.stmt) -> bool:
        text = ast.unparse(statement)
        return text.startswith(self.at[:-3]) if self.at.endswith("...") else text == self.at


SAME = "SAME"


@dataclass(frozen=True)
class Change:
    """Edits of one function: ``target`` is its dotted path. ``names``: what the new statements use beside it.
    ``shared``: memory of the process that the function works in, as a library's kernel may."""

    target: str
    edits: tuple[Edit, ...]
    names: tuple[tuple[str, Any], ...] = ()
    shared: str = ""

    @contextlib.contextmanager
    def applied(self, kernels: Kernels) -> Iterator[None]:
        """The function itself is changed, so that whoever holds it has the defect."""
        owner_name, _, name = self.target.rpartition(".")
        owner = pkgutil.resolve_name(owner_name)
        function = getattr(owner, name)
        if self.shared:
            slow = kernels.declared(function, name, (), scratch=(self.shared,), allocates=True)
            with mock.patch.object(owner, name, slow):
                yield
            return
        original = inspect.unwrap(function)
        code = original.__code__
        with mock.patch.dict(original.__globals__, dict(self.names)):
            original.__code__ = edited(original, self.edits).__code__
            try:
                yield
            finally:
                original.__code__ = code


def statements(function: Callable[..., Any], *parts: str) -> list[str]:
    """Every simple statement of a function's source that contains one of ``parts``."""
    return [
        ast.unparse(node)
        for node in ast.walk(_definition(inspect.unwrap(function)))
        if isinstance(node, ast.Expr | ast.Assign) and any(part in ast.unparse(node) for part in parts)
    ]


def edited(function: Callable[..., Any], edits: tuple[Edit, ...]) -> Callable[..., Any]:
    """``function`` as its source would be with ``edits``. Raises :class:`NoSuchStatement`."""
    definition = _definition(function)
    definition.decorator_list = []
    for edit in edits:
        editor = _Editor(edit)
        editor.visit(definition)
        if not editor.found:
            raise NoSuchStatement(f"{function.__qualname__} has no statement {edit.at}")
    module = ast.fix_missing_locations(ast.Module([definition], []))
    space: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, space)
    return space[function.__name__]


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    lines, first = inspect.getsourcelines(function)
    (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    ast.increment_lineno(definition, first - 1)
    assert isinstance(definition, ast.FunctionDef)
    return definition


class _Editor(ast.NodeTransformer):
    def __init__(self, edit: Edit):
        self.edit = edit
        self.found = False

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef) or not self.edit.matches(node):
            return self.generic_visit(node)
        self.found = True
        new = ast.parse(self.edit.instead)
        for part in ast.walk(new):
            if isinstance(part, ast.stmt | ast.expr):
                ast.copy_location(part, node)
                part.end_lineno, part.end_col_offset = node.lineno, node.col_offset
        body = _Same(node).visit(new).body
        return body or ast.copy_location(ast.Pass(), node)


class _Same(ast.NodeTransformer):
    def __init__(self, original: ast.stmt):
        self.original = original

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self.original if ast.unparse(node) == SAME else node
