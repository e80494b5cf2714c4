"""What a built model directory consists of, so that a complete one is told from a damaged or a foreign one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

NAME = "sglang_pd_manifest.json"


@dataclass(frozen=True)
class Identity:
    """Which model a directory holds: its name, the digest of what it is made from, and the version of the builder."""

    name: str
    source: str
    version: int


@dataclass(frozen=True)
class FileRecord:
    """One file; ``size`` in bytes, ``mtime_ns`` as it was when the digest was taken."""

    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    identity: Identity
    files: dict[str, FileRecord]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(directory: Path, identity: Identity) -> None:
    """Record every file of ``directory``."""
    files = {}
    for path in sorted(directory.iterdir()):
        stat = path.stat()
        files[path.name] = FileRecord(stat.st_size, stat.st_mtime_ns, sha256(path))
    text = json.dumps(dataclasses.asdict(Manifest(identity, files)), indent=1)
    (directory / NAME).write_text(text + "\n")


def read(directory: Path) -> Manifest | None:
    """The manifest, or None where there is none or it cannot be understood."""
    try:
        fields = json.loads((directory / NAME).read_bytes())
        files = {name: FileRecord(**record) for name, record in fields["files"].items()}
        return Manifest(Identity(**fields["identity"]), files)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_complete(directory: Path, identity: Identity) -> bool:
    """Whether ``directory`` holds exactly the model ``identity``, undamaged.

    A file with the recorded size and time is taken as unchanged, as git's index does; one with another time (a copy,
    a write) is read and its digest compared.
    """
    manifest = read(directory)
    if manifest is None or manifest.identity != identity:
        return False
    return all(_is_intact(directory / name, record) for name, record in manifest.files.items())


def _is_intact(path: Path, record: FileRecord) -> bool:
    try:
        stat = path.stat()
        if stat.st_size != record.size:
            return False
        return stat.st_mtime_ns == record.mtime_ns or sha256(path) == record.sha256
    except FileNotFoundError:
        return False
