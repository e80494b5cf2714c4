"""What the doctor gathered: plain facts, no judgement, as they stand in a bundle.

Times that end in ``at`` are seconds since the epoch by the clock of the machine that gathered; durations are seconds.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

SCHEMA = "sglang-pd/doctor-bundle"
VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """What came of one GET. ``status`` is None where no answer came, and ``problem`` says in words why.

    ``body``: parsed JSON, or text. ``skew``: the answer's ``Date`` minus the clock here, right to a second or two.
    """

    path: str
    status: int | None = None
    seconds: float = 0.0
    body: Any = None
    problem: str | None = None
    skew: float | None = None

    @property
    def ok(self) -> bool:
        return self.status == 200


@dataclass(frozen=True)
class Thread:
    """A thread as the kernel shows it. ``cores``: CPU it used while it was watched, 1.0 is a whole core."""

    tid: int
    name: str
    state: str
    cores: float
    waits_in: str | None = None


@dataclass(frozen=True)
class Process:
    """A local process. ``title``: what upstream calls it (``sglang::scheduler``); ``state``: the kernel's letter.

    ``threads``: the main one, and those that run or are stuck in the kernel; ``thread_count`` counts all. ``stack``:
    what py-spy showed; ``stack_problem``: why it showed nothing, where it was asked.
    """

    pid: int
    parent: int
    title: str
    state: str
    started_at: float
    age_seconds: float
    cores: float = 0.0
    rss_bytes: int | None = None
    thread_count: int = 0
    threads: list[Thread] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    stack: str | None = None
    stack_problem: str | None = None


@dataclass(frozen=True)
class Log:
    """The end of a log, and those lines further up that tell of failures. ``source``: a file, or a unit's journal.

    ``matched_total``: how many such lines there were in the part that was read, of which ``matched`` are the last.
    ``last_batch``: the last line about a batch; ``starts``: how often a server began in it.
    """

    source: str
    last_batch: str | None = None
    tail: list[str] = field(default_factory=list)
    matched: list[str] = field(default_factory=list)
    matched_total: int = 0
    starts: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Server:
    """One target. ``role``: ``prefill``, ``decode`` or ``gateway``; None where nothing told.

    ``replies`` by path with its query; ``later``: those of them that were asked again ``window_seconds`` after.
    ``processes``: the tree of the server, the main one first; None where it does not run on this machine, or where
    nobody could tell which it is. ``expected_pid``: the process that it should be, by its cluster, unit or the user.
    ``ports``: those its processes listen on.
    """

    name: str
    role: str | None
    url: str | None
    replies: dict[str, Reply] = field(default_factory=dict)
    later: dict[str, Reply] = field(default_factory=dict)
    window_seconds: float = 0.0
    processes: list[Process] | None = None
    expected_pid: int | None = None
    ports: list[int] = field(default_factory=list)
    log: Log | None = None
    unit: dict[str, str] | None = None


@dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi. ``pids``: the processes that hold memory on it."""

    index: int
    name: str
    utilisation: float | None
    power_watts: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    pids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """All of it. ``timeout``: seconds that each target had; ``seconds``: how long all took; ``gaps``: what could not be
    gathered, in words, beyond what replies and logs say themselves. ``utc_offset``: of local time, in which logs are
    written, in seconds."""

    at: float
    host: str
    timeout: float
    servers: list[Server]
    seconds: float = 0.0
    gpus: list[Gpu] | None = None
    gaps: list[str] = field(default_factory=list)
    doctor: str = ""
    utc_offset: float = 0.0


def to_data(snapshot: Snapshot) -> dict[str, Any]:
    """As JSON holds it."""
    return {"schema": {"name": SCHEMA, "version": VERSION}, **dataclasses.asdict(snapshot)}


def from_data(data: Any) -> Snapshot:
    """The snapshot that :func:`to_data` wrote. Fields that are not known are passed over; raises ``ValueError`` where
    the data is of something else, of a later version, or lacks what must be there."""
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA:
        raise ValueError(f"it is not a bundle of the doctor (no schema {SCHEMA!r})")
    if schema.get("version") != VERSION:
        raise ValueError(f"it is of version {schema.get('version')!r}; this doctor reads version {VERSION}")
    return _build(Snapshot, data, "bundle")


def _build(kind: type[T], data: Any, where: str) -> T:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {type(data).__name__}, not an object")
    hints = typing.get_type_hints(kind)
    known = [one for one in dataclasses.fields(kind) if one.name in data]  # type: ignore[arg-type]
    values = {one.name: _value(hints[one.name], data[one.name], f"{where}.{one.name}") for one in known}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(hint: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if data is None and type(None) in arguments:
            return None
        return _value(next(one for one in arguments if one is not type(None)), data, where)
    if origin is list:
        _check(isinstance(data, list), data, "a list", where)
        return [_value(arguments[0], one, f"{where}[{index}]") for index, one in enumerate(data)]
    if origin is dict:
        _check(isinstance(data, dict), data, "an object", where)
        return {key: _value(arguments[1], one, f"{where}.{key}") for key, one in data.items()}
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), data, where)
    if hint is float:
        _check(isinstance(data, int | float) and not isinstance(data, bool), data, "a number", where)
    elif hint is not Any:
        _check(isinstance(data, hint), data, f"of type {hint.__name__}", where)
    return data


def _check(holds: bool, data: Any, wanted: str, where: str) -> None:
    if not holds:
        raise ValueError(f"{where} is {data!r:.60}, not {wanted}")
