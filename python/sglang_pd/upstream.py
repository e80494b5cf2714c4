"""The contract with upstream: one version, and for each touch point the signature and source we wrote it against.

Everything here reads upstream's files without importing them, so that it works, and says what differs, however much
upstream has moved.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sglang_pd.errors import UserError

PINNED = "0.5.23"


class ContractError(UserError):
    """Upstream is not what this version of ours was written against."""

    def __init__(self, message: str):
        super().__init__(message, exit_code=1)


@dataclass(frozen=True)
class Fingerprint:
    """``signature``: the parameters as written, ``""`` for a class. ``digest``: 16 hex digits of the source's hash."""

    signature: str
    digest: str


def check_version() -> None:
    """Raise :class:`ContractError` unless the pinned upstream is installed."""
    try:
        found = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise ContractError(f"sglang is not installed; sglang-pd needs sglang=={PINNED}") from None
    if found != PINNED:
        raise ContractError(f"sglang {found} is installed; this sglang-pd works with sglang {PINNED} only")


def fingerprint(target: str, root: Path | None = None) -> Fingerprint:
    """The fingerprint of ``target``, a dotted path to a function, class or method under ``sglang``.

    ``root`` is the folder that holds upstream's files (the installed ``sglang`` by default). Raises
    :class:`ContractError` that says which part of the path is not there.
    """
    root = root or _installed_root()
    path, names = _split(target, root)
    lines, tree = _parse(path)
    node = _find(tree, names)
    if node is None:
        raise ContractError(f"{target} is gone: {path.relative_to(root)} has no {'.'.join(names)}")
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    source = "\n".join(line.rstrip() for line in lines[first - 1 : node.end_lineno])
    signature = "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"
    return Fingerprint(signature, hashlib.sha256(source.encode()).hexdigest()[:16])


def differences(recorded: Fingerprint, found: Fingerprint) -> list[str]:
    """What differs, in words; empty when nothing does."""
    out = []
    if recorded.signature != found.signature:
        out.append(f"its signature is {found.signature}, recorded is {recorded.signature}")
    if recorded.digest != found.digest:
        out.append(f"its source has digest {found.digest}, recorded is {recorded.digest}")
    return out


def broken(targets: Iterable[tuple[str, Fingerprint]], root: Path | None = None) -> dict[str, str]:
    """The targets that moved or changed, each with the reason."""
    out = {}
    for target, recorded in targets:
        try:
            reasons = differences(recorded, fingerprint(target, root))
        except ContractError as error:
            reasons = [str(error)]
        if reasons:
            out[target] = "; ".join(reasons)
    return out


def _installed_root() -> Path:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise ContractError("sglang is not installed")
    return Path(spec.origin).parent


def _split(target: str, root: Path) -> tuple[Path, list[str]]:
    """The file of the longest module prefix of ``target``, and the names inside it."""
    parts = target.split(".")[1:]
    for cut in range(len(parts) - 1, 0, -1):
        base = root.joinpath(*parts[:cut])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path, parts[cut:]
    raise ContractError(f"{target} is gone: no module of that name in sglang")


@functools.lru_cache(maxsize=64)
def _parse(path: Path) -> tuple[list[str], ast.Module]:
    text = path.read_text()
    return text.split("\n"), ast.parse(text)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find(tree: ast.Module, names: list[str]) -> _Definition | None:
    scope: ast.Module | _Definition = tree
    for name in names:
        found = [node for node in scope.body if isinstance(node, _Definition) and node.name == name]
        if not found:
            return None
        scope = found[-1]
    return scope if isinstance(scope, _Definition) else None
