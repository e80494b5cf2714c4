"""What a cluster's supervisor writes and every command reads: one folder per cluster.

``plan.json`` is what should run, ``state.json`` what does (replaced whole, so a reader never sees half of it),
``logs/`` what it said, and ``lock`` is held by the supervisor as long as it lives. ``restarts/NAME`` is there while
that process is to end and to be started again.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.plan import Plan, check_name
from sglang_pd.cluster.procfs import Identity, alive
from sglang_pd.environ import envs
from sglang_pd.errors import UserError

VERSION = 1


@dataclass
class ProcessState:
    """One process. Times are seconds since the epoch; ``ready_s`` is from launch to ready; ``detail`` is for people;
    ``restarts`` is how often it was started again."""

    name: str
    role: str
    port: int
    url: str
    bootstrap_port: int | None
    log: str
    identity: Identity | None = None
    phase: Phase = Phase.STARTING
    detail: str = ""
    launched_at: float | None = None
    ready_s: float | None = None
    ended_at: float | None = None
    restarts: int = 0


@dataclass
class Failure:
    """Why a cluster went down: which process, what happened, and where its log is."""

    process: str
    reason: str
    log: str


@dataclass
class ClusterState:
    """A cluster as its supervisor sees it. ``phase`` is one of starting, ready, stopping, stopped, failed; ``preload``
    is the process that the servers were forked from, where there is one."""

    name: str
    model: str
    served_model_name: str
    supervisor: Identity
    started_at: float
    processes: list[ProcessState]
    phase: Phase = Phase.STARTING
    ready_s: float | None = None
    failure: Failure | None = None
    ports: list[int] = field(default_factory=list)
    preload: Identity | None = None

    @property
    def gateway(self) -> ProcessState:
        return next(one for one in self.processes if one.role == "gateway")

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> ClusterState:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for a text that is no state of this version."""
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("version") != VERSION:
            raise ValueError(f"not of version {VERSION}")
        processes = [_process(one) for one in fields.pop("processes")]
        failure, preload = fields.pop("failure"), fields.pop("preload")
        return cls(
            processes=processes,
            failure=Failure(**failure) if failure else None,
            supervisor=Identity(**fields.pop("supervisor")),
            preload=Identity(**preload) if preload else None,
            phase=Phase(fields.pop("phase")),
            **fields,
        )


def _process(fields: dict[str, Any]) -> ProcessState:
    identity = fields.pop("identity")
    phase = Phase(fields.pop("phase"))
    return ProcessState(identity=Identity(**identity) if identity else None, phase=phase, **fields)


class Busy(UserError):
    """Another command holds the cluster."""


class ClusterDir:
    """The folder of one cluster."""

    def __init__(self, path: Path):
        self.path = path
        self.name = path.name
        self.logs = path / "logs"
        self.supervisor_log = self.logs / "supervisor.log"
        self._state = path / "state.json"
        self._plan = path / "plan.json"
        self._lock = path / "lock"
        self._restarts = path / "restarts"

    @classmethod
    def named(cls, name: str) -> ClusterDir:
        check_name(name)
        return cls(clusters_home() / name)

    def log(self, process: str) -> Path:
        return self.logs / f"{process}.log"

    def lock(self) -> int:
        """Take the cluster; returns the open file, which may be handed to a child and is closed to let go.

        Raises :class:`Busy` where another process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Busy(
                f"cluster {self.name!r} is already up or being started; see `sglang-pd status --name {self.name}`, "
                "stop it with `sglang-pd down`, or choose another --name"
            ) from None
        return handle

    def is_locked(self) -> bool:
        if not self._lock.exists():
            return False
        try:
            os.close(self.lock())
        except Busy:
            return True
        return False

    def save_plan(self, plan: Plan) -> None:
        _replace(self._plan, plan.to_json())

    def load_plan(self) -> Plan | None:
        text = _read(self._plan)
        return Plan.from_json(text) if text is not None else None

    def save(self, state: ClusterState) -> None:
        _replace(self._state, state.to_json())

    def load(self) -> ClusterState | None:
        """The state as last written, or None. Raises :class:`UserError` where the file is not ours to understand."""
        text = _read(self._state)
        if text is None:
            return None
        try:
            return ClusterState.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._state} cannot be read ({error}); if no cluster of this name runs, remove the file", exit_code=1
            ) from error

    def forget(self) -> None:
        """Remove the state and what was asked for; the logs stay."""
        self._state.unlink(missing_ok=True)
        for one in self._restarts.glob("*"):
            one.unlink(missing_ok=True)

    def want_restart(self, process: str) -> None:
        """From now on the end of ``process`` is no failure: the supervisor starts it again, once."""
        self._restarts.mkdir(parents=True, exist_ok=True)
        (self._restarts / process).touch()

    def restart_wanted(self, process: str) -> bool:
        return (self._restarts / process).exists()

    def restart_done(self, process: str) -> None:
        """What :meth:`want_restart` asked for has been done, or is no longer wanted."""
        (self._restarts / process).unlink(missing_ok=True)


def is_stale(state: ClusterState) -> bool:
    """Whether the supervisor that wrote this is gone without having finished (kill -9, a reboot)."""
    return state.phase not in (Phase.STOPPED, Phase.FAILED) and not alive(state.supervisor)


def clusters_home() -> Path:
    return envs.SGLANG_PD_HOME.get() / "clusters"


@contextmanager
def port_allocation(own: ClusterDir) -> Iterator[set[int]]:
    """Choose the ports of ``own`` while no other command chooses any; gives those that other clusters have been
    promised and may not listen on yet.

    To be held until the plan of ``own``, which is locked, is on disk: then the next command counts its ports.
    """
    home = own.path.parent
    home.mkdir(parents=True, exist_ok=True)
    handle = os.open(home / ".ports.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        others = [ClusterDir(path) for path in home.iterdir() if path.is_dir() and path != own.path]
        plans = [one.load_plan() for one in others if one.is_locked()]
        yield {port for plan in plans if plan for port in plan.ports}
    finally:
        os.close(handle)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)
