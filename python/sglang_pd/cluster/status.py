"""What `sglang-pd status` tells: one dict for programs, one table for people."""

from __future__ import annotations

import time
from typing import Any

from sglang_pd.cluster import memory
from sglang_pd.cluster.logs import tail
from sglang_pd.cluster.memory import Memory
from sglang_pd.cluster.phases import ENDED
from sglang_pd.cluster.procfs import PROC, Stat, alive, members, table
from sglang_pd.cluster.state import ClusterDir, ProcessState, is_stale
from sglang_pd.cluster.words import clock, curl_line, duration, size, tail_of, why_down


def report(folder: ClusterDir) -> dict[str, Any]:
    """The status of a cluster, as ``--json`` prints it. Sizes are bytes, times seconds; what is not known is None.

    - ``cluster``, ``status``: "starting", "ready", "stopping", "failed", "stopped", "stale" (the supervisor was killed;
      the next `up` or `down` cleans up) or "none". With "none" nothing follows.
    - ``model``, ``served_model_name``, ``url`` (the gateway's), ``supervisor_pid``, ``started_at`` (epoch),
      ``startup_seconds`` (until everything was ready), ``uptime_seconds`` (None unless it is up).
    - ``memory``: ``{"rss_bytes", "pss_bytes"}`` of all processes; rss counts shared pages once per process.
    - ``processes``: a list of ``{"name", "role", "pid", "port", "bootstrap_port", "url", "phase", "detail",
      "startup_seconds", "uptime_seconds", "memory", "members", "log"}``, where ``memory`` is the sum over ``members``,
      a list of ``{"pid", "title", "rss_bytes", "pss_bytes"}``: the process itself ("main") and what it started.
    - ``preload``: None, or ``{"pid", "rss_bytes", "pss_bytes"}`` of the process that imports once and forks the
      servers; it counts in ``memory``.
    - ``failure``: None or ``{"process", "reason", "log", "log_tail"}``, ``log_tail`` a list of lines.
    """
    state = folder.load()
    if state is None:
        return {"cluster": folder.name, "status": "none"}
    now = time.time()
    running = table()
    processes = [_process(one, running, now) for one in state.processes]
    preload = state.preload if alive(state.preload) else None
    shared = {"pid": preload.pid, **_memory(memory.of(preload.pid))} if preload else None
    up = state.phase not in ENDED and not is_stale(state)
    failure = state.failure
    return {
        "cluster": state.name,
        "status": "stale" if is_stale(state) else state.phase.value,
        "model": state.model,
        "served_model_name": state.served_model_name,
        "url": state.gateway.url,
        "supervisor_pid": state.supervisor.pid if up else None,
        "started_at": state.started_at,
        "startup_seconds": state.ready_s,
        "uptime_seconds": now - state.started_at if up else None,
        "memory": _sum([one["memory"] for one in processes] + ([shared] if shared else [])),
        "preload": shared,
        "processes": processes,
        "failure": failure
        and {"process": failure.process, "reason": failure.reason, "log": failure.log, "log_tail": tail_of(failure)},
    }


def _process(process: ProcessState, running: list[Stat], now: float) -> dict[str, Any]:
    found = members(process.identity, running) if process.identity else []
    own = process.identity
    parts = [
        {"pid": one.pid, "title": "main" if one.identity == own else title(one), **_memory(memory.of(one.pid))}
        for one in found
    ]
    alive = bool(found)
    return {
        "name": process.name,
        "role": process.role,
        "pid": process.identity.pid if process.identity else None,
        "port": process.port,
        "bootstrap_port": process.bootstrap_port,
        "url": process.url,
        "phase": process.phase.value,
        "detail": process.detail,
        "startup_seconds": process.ready_s,
        "uptime_seconds": now - process.launched_at if alive and process.launched_at else None,
        "memory": _sum(parts),
        "members": parts,
        "log": process.log,
    }


def title(process: Stat) -> str:
    """The name upstream gives a helper (``sglang::scheduler``), else the kernel's."""
    try:
        command = (PROC / str(process.pid) / "cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return process.name
    if "multiprocessing.resource_tracker" in command:
        return "tracker"
    given = command.partition("\0")[0]
    return given.split()[0] if "::" in given else process.name


def _memory(one: Memory) -> dict[str, int | None]:
    return {"rss_bytes": one.rss, "pss_bytes": one.pss}


def _sum(parts: list[dict[str, Any]]) -> dict[str, int | None]:
    total = Memory(0, 0)
    for part in parts:
        total += Memory(part["rss_bytes"], part["pss_bytes"])
    return _memory(total if parts else Memory(None, None))


HEAD = ("process", "role", "pid", "port", "phase", "start", "up", "rss", "pss")
_LEFT = (0, 1, 4)


def text(folder: ClusterDir) -> str:
    """The status for people, in 80 columns but for long paths and the request to try."""
    state = folder.load()
    facts = report(folder)
    if state is None:
        return f"no cluster '{folder.name}'; `sglang-pd up` starts one"
    head = f"cluster '{state.name}': {facts['status']}"
    if facts["startup_seconds"] is not None:
        head += f", started in {facts['startup_seconds']:.1f} s"
    if facts["uptime_seconds"] is not None:
        head += f", up {duration(facts['uptime_seconds'])}"
    if state.phase in ENDED:
        lines = [f"{head}; it was started at {clock(state.started_at)}"]
        return "\n".join([*lines, why_down(state)] if state.failure else lines)
    lines = [head, f"model {state.model}", "", *table_lines(facts), "", "Logs:"]
    lines += [f"  {one.log}" for one in state.processes]
    if facts["status"] == "ready":
        lines += ["", "Try it:", curl_line(facts["url"], state.served_model_name)]
    if facts["status"] == "stale":
        lines += ["", "Its supervisor was killed; `sglang-pd down` or the next `up` cleans up."]
        lines += tail(folder.supervisor_log)
    return "\n".join(lines)


def table_lines(facts: dict[str, Any]) -> list[str]:
    """The table of processes and their helpers, from a :func:`report`."""
    total = facts["memory"]
    last = ("total", "", "", "", "", "", "", size(total["rss_bytes"]), size(total["pss_bytes"]))
    rows = [row for one in facts["processes"] for row in _rows(one)]
    if facts["preload"]:
        shared = facts["preload"]
        sizes = (size(shared["rss_bytes"]), size(shared["pss_bytes"]))
        rows.append(("preload", "imports", str(shared["pid"]), "", "", "", "", *sizes))
    return _align([HEAD, *rows, last])


def _rows(one: dict[str, Any]) -> list[tuple[str, ...]]:
    start = "-" if one["startup_seconds"] is None else f"{one['startup_seconds']:.1f}s"
    up = "-" if one["uptime_seconds"] is None else duration(one["uptime_seconds"])
    used = (size(one["memory"]["rss_bytes"]), size(one["memory"]["pss_bytes"]))
    rows: list[tuple[str, ...]] = [
        (one["name"], one["role"], str(one["pid"] or "-"), str(one["port"]), one["phase"], start, up, *used)
    ]
    if len(one["members"]) > 1:
        for part in one["members"]:
            name = "  " + part["title"].removeprefix("sglang::")
            sizes = (size(part["rss_bytes"]), size(part["pss_bytes"]))
            rows.append((name[:18], "", str(part["pid"]), "", "", "", "", *sizes))
    return rows


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    """Names and phases to the left, numbers to the right; one space between numbers keeps it in 80 columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    out = []
    for row in rows:
        line = ""
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " if i - 1 not in _LEFT and i not in _LEFT else "  "
            line += (gap if i else "") + (cell.ljust(width) if i in _LEFT else cell.rjust(width))
        out.append(line.rstrip())
    return out
