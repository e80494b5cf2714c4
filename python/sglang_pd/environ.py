"""Every environment variable of ours, typed; nothing else in the project reads the environment.

The shape is upstream's (``sglang.srt.environ``): a class of fields, read by ``envs.NAME.get()``. One thing differs on
purpose: a bad value is an error that names the variable, the value and what is allowed, where upstream warns and goes
on with the default.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

# A name that starts like this is meant for us. Upstream 0.5.23 has no variable with these prefixes.
OUR_PREFIXES = ("SGLANG_PD_",)


class EnvError(ValueError):
    """A variable of ours has a value it cannot have."""


class EnvField(Generic[T]):
    """One variable: default, what is allowed, and what it does (shown in ``docs/environment.md``).

    ``get`` reads the process environment at each call; it raises :class:`EnvError` for a bad value.
    """

    allowed = "any text"
    name: str

    def __init__(self, default: T, help: str):
        self.default = default
        self.help = help

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def parse(self, text: str) -> T:
        """The value that ``text`` stands for; raises ``ValueError`` if none."""
        raise NotImplementedError

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        text = (os.environ if environ is None else environ).get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise EnvError(f"{self.name}={text!r} is not valid; allowed: {self.allowed}") from None

    def is_set(self) -> bool:
        return self.name in os.environ


class EnvBool(EnvField[bool]):
    allowed = "1, true, yes, y, 0, false, no, n"

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in ("1", "true", "yes", "y"):
            return True
        if word in ("0", "false", "no", "n"):
            return False
        raise ValueError(text)


class EnvCount(EnvField[int]):
    allowed = "a whole number from 1"

    def parse(self, text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(text)
        return int(text)


class EnvSeconds(EnvField[float]):
    allowed = "a number of seconds above 0"

    def parse(self, text: str) -> float:
        seconds = float(text)
        if not 0 < seconds < math.inf:
            raise ValueError(text)
        return seconds


class EnvPath(EnvField[Path]):
    allowed = "an absolute path, ~ allowed"

    def parse(self, text: str) -> Path:
        path = Path(text).expanduser()
        if not path.is_absolute():
            raise ValueError(text)
        return path


class Envs:
    SGLANG_PD_HOME = EnvPath(
        Path("~/.cache/sglang-pd").expanduser(),
        "Where demo models and the state and logs of local clusters are kept.",
    )
    SGLANG_PD_CPU_PLATFORM = EnvBool(
        True,
        "Make the stock command line serve on a machine without a GPU. 0 leaves upstream's behaviour there "
        "(it refuses to start). Where a GPU is present this does nothing.",
    )
    SGLANG_PD_PRELOAD = EnvBool(
        True,
        "On a machine without a GPU, `sglang-pd up` imports the server's modules once and forks every process of "
        "every server from there. 0 starts each server by the stock command line.",
    )
    SGLANG_PD_RELIABLE = EnvBool(
        True,
        "Transfer KV over NIXL with this package's classes, which build on upstream's. 0 leaves upstream's as they "
        "are. The two work with each other across a prefill-decode pair.",
    )
    SGLANG_PD_TRANSFER_TIMEOUT = EnvSeconds(
        60.0,
        "Seconds that prefill gives the writes of one chunk, from the moment they were posted. A chunk takes seconds "
        "at most even on a slow network; upstream waits for ever, and a stopped decode then holds a worker for ever.",
    )
    SGLANG_PD_ROOMS_PER_PEER = EnvCount(
        4,
        "Rooms that prefill sends to one decode at a time. Each takes a thread, given back when the decode is idle.",
    )
    SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT = EnvSeconds(
        300.0,
        "Seconds that prefill waits for decode's metadata. As long as upstream's: a decode without free pages sends it "
        "late, and rightly so.",
    )
    SGLANG_PD_PREFILL_WAITING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the metadata to the first write: queueing and computing. Upstream waits for ever."
    )
    SGLANG_PD_PREFILL_TRANSFERRING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the first write to the last, computing later chunks included. Upstream waits for ever."
    )
    SGLANG_PD_PREFILL_ABORTING_TIMEOUT = EnvSeconds(
        30.0,
        "Seconds for the posted writes of an aborted room to end. Without effect so far: an aborted room ends at once.",
    )
    SGLANG_PD_DECODE_RESOLVING_TIMEOUT = EnvSeconds(
        60.0, "Seconds to learn which prefill rank has a request; the bootstrap server answers in milliseconds."
    )
    SGLANG_PD_DECODE_BOOTSTRAPPING_TIMEOUT = EnvSeconds(
        60.0, "Seconds to fetch a prefill rank's address and register with it; both take milliseconds."
    )
    SGLANG_PD_DECODE_ALLOCATING_TIMEOUT = EnvSeconds(
        300.0, "Seconds that decode queues for KV pages. Upstream waits for ever."
    )
    SGLANG_PD_DECODE_WAITING_TIMEOUT = EnvSeconds(
        300.0,
        "Seconds from sending the metadata to the first sign of data. Prefill's queue and computing fall in here.",
    )
    SGLANG_PD_DECODE_TRANSFERRING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the first sign of data to prefill's word that all was sent."
    )
    SGLANG_PD_DECODE_FINISHING_TIMEOUT = EnvSeconds(
        30.0,
        "Seconds from that word until the auxiliary data is there and the scheduler takes over; usually milliseconds. "
        "Upstream waits for ever.",
    )
    SGLANG_PD_DECODE_ABORTING_TIMEOUT = EnvSeconds(
        30.0,
        "Seconds for prefill to confirm that it writes no more to an aborted room. "
        "Without effect so far: an aborted room ends at once.",
    )


envs = Envs()


def fields() -> dict[str, EnvField]:
    """Every variable of ours by name, in the order of :class:`Envs`."""
    return {name: field for name, field in vars(Envs).items() if isinstance(field, EnvField)}


def validate(environ: Mapping[str, str] | None = None) -> list[str]:
    """Read every variable once.

    Returns a warning for each name that has one of our prefixes and is no variable of ours. Raises :class:`EnvError`
    that lists every bad value, not only the first.
    """
    environ = os.environ if environ is None else environ
    known = fields()
    errors = []
    for field in known.values():
        try:
            field.get(environ)
        except EnvError as error:
            errors.append(str(error))
    if errors:
        raise EnvError("; ".join(errors))
    return [
        _unknown(name, list(known)) for name in sorted(environ) if name.startswith(OUR_PREFIXES) and name not in known
    ]


def _unknown(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"unknown variable {name}; the nearest known one is {nearest[0]}"


def upstream(name: str) -> str | None:
    """A variable that is not ours (upstream's, a library's), as it stands; None where it is not set."""
    return os.environ.get(name)


def set_default(name: str, value: str) -> bool:
    """Set a variable of upstream's or of a library's unless the user did; returns whether it was set here."""
    if name in os.environ:
        return False
    os.environ[name] = value
    return True


def handed_on(values: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that this one starts: its own, with ``values`` set."""
    return {**os.environ, **values}


def take_over(values: Mapping[str, str]) -> None:
    """Set variables that the one who started this process chose for it."""
    os.environ.update(values)


def markdown() -> str:
    """The text of ``docs/environment.md``."""
    lines = [
        "# Environment variables",
        "",
        "Generated from `python/sglang_pd/environ.py` by `python -m sglang_pd.environ`; a test compares. A bad value",
        "stops the server at start with an error that names the variable, the value and what is allowed. An unknown",
        "name that starts with " + ", ".join(f"`{p}`" for p in OUR_PREFIXES) + " is warned about.",
        "",
        "| Variable | Default | Allowed | What it does |",
        "|---|---|---|---|",
    ]
    home = str(Path.home())
    for name, field in fields().items():
        default = str(int(field.default) if isinstance(field.default, bool) else field.default).replace(home, "~")
        lines.append(f"| `{name}` | `{default}` | {field.allowed} | {field.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
