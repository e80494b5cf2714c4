"""A bundle: one file with all the evidence of a run, and nothing secret; JSON, compressed where it is named .gz."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from sglang_pd.doctor.evidence import Snapshot, from_data, to_data
from sglang_pd.errors import UserError

_GZIP = b"\x1f\x8b"


def write(path: Path, snapshot: Snapshot) -> int:
    """Write a bundle that only its owner may read, and return its size in bytes. Raises :class:`UserError`."""
    content = (json.dumps(to_data(snapshot), separators=(",", ":")) + "\n").encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError as error:
        raise UserError(f"--bundle {path}: cannot be written: {error.strerror}", exit_code=1) from None
    return len(content)


def read(path: Path) -> Snapshot:
    """Raises :class:`UserError` where the file cannot be read, or is no bundle."""
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content.startswith(_GZIP) else content
        return from_data(json.loads(text))
    except (OSError, EOFError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"--from-bundle {path}: {reason}; give a file that `sglang-pd doctor --bundle` wrote") from None
