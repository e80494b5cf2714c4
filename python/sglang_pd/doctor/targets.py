"""Which servers to look at, from the command line, a unit, a process, or the local cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.procfs import stat
from sglang_pd.cluster.state import ClusterDir
from sglang_pd.doctor import processes
from sglang_pd.doctor.fetch import check_url
from sglang_pd.doctor.processes import flag
from sglang_pd.errors import UserError

# Upstream's, where a command line has no ``--port``.
PORT = 30000
_UNIT_FIELDS = "Id,LoadState,ActiveState,SubState,Result,MainPID,NRestarts,ExecMainStartTimestamp,ActiveEnterTimestamp"
UNIT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Target:
    """``pid``: the main process, where it is known; ``log``: the file it logs to, where that is known; ``unit``: what
    systemd says of the unit it belongs to, by systemd's names."""

    name: str
    role: str | None
    url: str | None
    pid: int | None = None
    log: str | None = None
    unit: dict[str, str] | None = None


def of_urls(prefill: Sequence[str], decode: Sequence[str], gateway: str | None) -> list[Target]:
    """Raises :class:`UserError` for what is no URL, and for one that is given twice."""
    given = [("prefill", url) for url in prefill] + [("decode", url) for url in decode]
    given += [("gateway", gateway)] if gateway is not None else []
    found: dict[str, Target] = {}
    for role, text in given:
        url = check_url(f"--{role}", text)
        if url in found:
            raise UserError(f"--{role} {text!r} is given twice; allowed: each server once")
        found[url] = Target(f"{role} {urlsplit(url).netloc}", role, url)
    return list(found.values())


def of_pids(pids: Sequence[int]) -> list[Target]:
    """Raises :class:`UserError` where one is not a process."""
    return [_of_pid(pid) for pid in dict.fromkeys(pids)]


def _of_pid(pid: int) -> Target:
    if pid < 1 or stat(pid) is None:
        raise UserError(f"--pid {pid}: there is no such process; allowed: the pid of a server's main process")
    pid, role, url = what_serves(pid)
    if role == "gateway" and url is None:
        raise UserError(f"--pid {pid} is a gateway whose command line does not show its port; give --gateway URL")
    if role is None:
        raise UserError(
            f"--pid {pid} is no server of a prefill-decode pair and no gateway (its command line says so); "
            "give the main process: python -m sglang.launch_server --disaggregation-mode ..., or smg"
        )
    return Target(f"{role} pid {pid}", role, url, pid)


def what_serves(pid: int) -> tuple[int, str | None, str | None]:
    """The server among a process and all that it started (a unit may start a shell first): its pid, role and URL."""
    for one in processes.tree(pid):
        role, url = what_runs(processes.command(one.pid))
        if role is not None:
            return one.pid, role, url
    return pid, None, None


def what_runs(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Role and local URL of a process, from its command line; pure."""
    role = flag(arguments, "--disaggregation-mode")
    if role not in ("prefill", "decode"):
        # The gateway gives itself a title once it runs, which has no port in it.
        titled = bool(arguments) and arguments[0].startswith("smg::")
        if titled:
            return "gateway", None
        role = "gateway" if "--pd-disaggregation" in arguments or "smg" in arguments[:4] else None
    host = flag(arguments, "--host") or "127.0.0.1"
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    port = flag(arguments, "--port") or str(PORT)
    known = role is not None and port.isdigit()
    return role, f"http://{f'[{host}]' if ':' in host else host}:{port}" if known else None


def of_units(units: Sequence[str]) -> list[Target]:
    """Raises :class:`UserError` where systemd knows no such unit, or does not answer."""
    return [_of_unit(unit) for unit in dict.fromkeys(units)]


def _of_unit(unit: str) -> Target:
    argv = ["systemctl", "show", "--no-pager", "--property", _UNIT_FIELDS, "--", unit]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=UNIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"--unit {unit}: systemctl cannot be asked ({error})", exit_code=1) from None
    if done.returncode != 0:
        raise UserError(f"--unit {unit}: systemctl says: {' '.join(done.stderr.split())[:200]}", exit_code=1)
    return of_properties(unit, done.stdout)


def of_properties(unit: str, text: str) -> Target:
    """The target of a unit from what ``systemctl show`` printed. Raises :class:`UserError` where there is no unit."""
    fields = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    if fields.get("LoadState") != "loaded":
        state = fields.get("LoadState", "unknown")
        raise UserError(f"--unit {unit!r}: systemd has no such unit loaded (it is {state}); see systemctl list-units")
    pid = int(fields.get("MainPID") or 0) or None
    pid, role, url = what_serves(pid) if pid else (None, None, None)
    return Target(unit, role, url, pid, None, fields)


def of_cluster(name: str) -> list[Target]:
    """The processes of a local cluster. Raises :class:`UserError` where there is none."""
    folder = ClusterDir.named(name)
    state = folder.load()
    if state is None:
        raise UserError(
            f"no cluster {name!r} here, and no target given; "
            "give --prefill URL --decode URL, --unit NAME or --pid PID, or start a cluster with `sglang-pd up`"
        )
    if state.phase is Phase.STOPPED:
        raise UserError(f"cluster {name!r} is stopped; start it with `sglang-pd up`, or give a target")
    return [
        Target(one.name, one.role, one.url, one.identity.pid if one.identity else None, one.log)
        for one in state.processes
    ]
