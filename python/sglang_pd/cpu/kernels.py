"""A stand-in for upstream's kernel wheel, ``sgl_kernel``.

The CUDA wheel cannot be imported without libcuda, and upstream imports names from it at module level in many places.
On the CPU those names are never called: upstream falls back to PyTorch. So every name exists and says what is wrong
if it is called after all.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

NAME = "sgl_kernel"


class KernelNotOnCpu(NotImplementedError):
    """A GPU kernel was called in a process that serves on the CPU."""


class _Missing:
    """Any object of the wheel. It has every attribute, since upstream reads constants from it at import
    (``scalar_types.uint4b8``), and refuses to be called."""

    def __init__(self, name: str):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Missing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise KernelNotOnCpu(f"{self.__name__} is a GPU kernel, and this process serves on the CPU")

    def __repr__(self) -> str:
        return f"<{self.__name__}: not on the CPU>"


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Dunder names are questions of the import system and of inspect; the true answer is that they are not there.
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Missing(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == NAME or fullname.startswith(NAME + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True, origin="sglang-pd stand-in")
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: names come into being when asked for."""


def install() -> None:
    """Put the stand-in in place of ``sgl_kernel``, unless a wheel that works on this machine is there already.

    A CPU build of the wheel (with AMX kernels) imports without libcuda, and then it is better than we are.
    """
    if NAME in sys.modules or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if importlib.util.find_spec(NAME) is not None:
        try:
            importlib.import_module(NAME)
        except (ImportError, OSError):
            for name in [n for n in sys.modules if n == NAME or n.startswith(NAME + ".")]:
                del sys.modules[name]
        else:
            return
    sys.meta_path.insert(0, _Finder())
