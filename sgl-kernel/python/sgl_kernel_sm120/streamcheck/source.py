"""Where an operation comes from: the lines of the program that lead to it, innermost first."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

HERE = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)
STDLIB = sysconfig.get_path("stdlib")
DEPTH = 24  # frames kept per operation


@dataclass(frozen=True)
class Line:
    """One line of the program: ``file``, ``number`` (from 1) and the ``function`` it is in."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number} ({self.function})"

    def target(self) -> str | None:
        """The variable that the statement on this line assigns to, if it is an assignment."""
        statement = self._statement()
        if isinstance(statement, ast.Assign):
            first = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            first = statement.target
        else:
            return None
        if isinstance(first, ast.Tuple):
            names = [ast.unparse(one) for one in first.elts]
            return next((name for name in names if name != "_"), None)
        return ast.unparse(first)

    def hands_on(self, name: str | None) -> bool:
        """Whether the function returns what this line makes: here, or by the variable ``name``."""
        statement = self._statement()
        if isinstance(statement, ast.Return):
            return True
        returned = _returned(self.file).get(self.function, frozenset())
        return name is not None and name in returned

    def _statement(self) -> ast.stmt | None:
        return _statements(self.file).get(self.number)


Site = tuple[Line, ...]


class Sites:
    """Takes the program's lines from the running stack.

    ``focus``: parts of paths; a frame counts as the program's own if its file contains one of them. Frames of libraries
    between are skipped. Without a focus all count but torch's, the standard library's and the checker's.
    """

    def __init__(self, focus: tuple[str, ...] = ()):
        self.focus = focus
        self._own: dict[str, bool] = {}

    def here(self) -> Site:
        """The program's lines that are running, innermost first."""
        frame: FrameType | None = sys._getframe(1)
        lines: list[Line] = []
        while frame is not None and len(lines) < DEPTH:
            file = frame.f_code.co_filename
            own = self._own.get(file)
            if own is None:
                own = self._own[file] = self._is_own(file)
            if own:
                lines.append(Line(file, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(lines)

    def _is_own(self, file: str) -> bool:
        if file.startswith(HERE):
            return False
        if self.focus:
            return any(part in file for part in self.focus)
        return not file.startswith((TORCH, STDLIB, "<"))


def called(line: Line) -> str | None:
    """The name of the function that the line's statement calls, if it calls one."""
    statement = _statements(line.file).get(line.number)
    value = getattr(statement, "value", None)
    while isinstance(value, ast.Call | ast.Subscript):
        value = value.func if isinstance(value, ast.Call) else value.value
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else None


def innermost(site: Site) -> str:
    return str(site[0]) if site else "unknown line"


@functools.cache
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.cache
def _returned(file: str) -> dict[str, frozenset[str]]:
    """By function: the variables that it returns, alone or in a tuple."""
    found: dict[str, frozenset[str]] = {}
    for function in ast.walk(_tree(file)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                    names = frozenset(one.id for one in parts if isinstance(one, ast.Name))
                    found[function.name] = found.get(function.name, frozenset()) | names
    return found


@functools.cache
def _statements(file: str) -> dict[int, ast.stmt]:
    """The innermost simple statement of each line of a file."""
    found: dict[int, ast.stmt] = {}
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[number] = node
    return found
