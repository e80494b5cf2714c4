"""Which life of a process this is: a restarted one listens where the old one did, and is another all the same."""

from __future__ import annotations

import os
import re
import secrets
import time
from functools import lru_cache

_TEXT = re.compile(r"[0-9a-f]{8}@[0-9]{1,12}")


def mine() -> str:
    """This process, as ``<8 hexadecimal digits>@<seconds since the epoch when it was first asked>``: unique, and one
    sees how old it is."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(pid: int) -> str:
    # By process: one that was forked is another.
    return f"{secrets.token_hex(4)}@{int(time.time())}"


def is_one(text: str) -> bool:
    return _TEXT.fullmatch(text) is not None


def started(text: str) -> int:
    """When it began, in seconds since the epoch; raises ``ValueError`` where ``text`` is none."""
    if not is_one(text):
        raise ValueError(f"{text!r} is no incarnation; one looks like 0a1b2c3d@1764534196")
    return int(text.partition("@")[2])
