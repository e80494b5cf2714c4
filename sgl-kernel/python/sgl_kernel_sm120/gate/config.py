"""A kernel as it may be launched: argument types, compile-time constants, warps and stages; and its digest."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton


@dataclass(frozen=True)
class KernelConfig:
    """One configuration.

    ``types``: of each argument that is no constant, in triton's words (``"*bf16"``, ``"i32"``, ``"fp32"``); a trailing
    ``":16"`` says that the value is a multiple of 16, as a launch would find out. ``blocks``: resident blocks per
    multiprocessor that the launch counts on, by architecture. ``matrix``: whether the kernel must use the matrix unit,
    or the instruction of it that it must use where that is not the architecture's largest.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int = 1
    matrix: bool | str = False
    blocks: Mapping[str, int] = field(default_factory=dict)

    def matrix_on(self, instruction: str) -> str:
        """The instruction to look for on an architecture whose matrix unit has ``instruction``."""
        return self.matrix if isinstance(self.matrix, str) else instruction

    def digest(self, arch: str) -> str:
        """16 hex digits that change when the configuration, the kernel's source or triton's version does."""
        what = [arch, triton.__version__, dict(self.types), dict(self.constants), self.num_warps, self.num_stages]
        if isinstance(self.matrix, str):
            what.append(self.matrix)
        text = json.dumps(what, sort_keys=True) + "".join(sorted(_sources(self.kernel).values()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources(kernel: Any) -> dict[str, str]:
    """The source of a kernel and of every device function that it calls, by qualified name."""
    found: dict[str, str] = {}
    waiting = [kernel]
    while waiting:
        function = waiting.pop().fn
        name = f"{function.__module__}.{function.__qualname__}"
        if name in found:
            continue
        found[name] = textwrap.dedent(inspect.getsource(function))
        called = {node.id for node in ast.walk(ast.parse(found[name])) if isinstance(node, ast.Name)}
        others = [function.__globals__[word] for word in sorted(called) if word in function.__globals__]
        waiting += [other for other in others if hasattr(other, "fn") and other.fn.__module__.startswith(_OURS)]
    return found


_OURS = __name__.partition(".")[0]
