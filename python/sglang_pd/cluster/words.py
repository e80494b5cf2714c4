"""Numbers and facts as people read them. Pure."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

from sglang_pd.cluster.logs import tail
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.state import ClusterState, Failure, ProcessState

QUESTION = "What is the capital of France?"


def duration(seconds: float) -> str:
    """``42s``, ``5m12s``, ``3h07m``, ``2d04h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def size(count: int | None) -> str:
    """Bytes in powers of 1024: ``812K``, ``54M``, ``1.3G``, ``512G``; ``-`` for None."""
    if count is None:
        return "-"
    if count < 1 << 20:
        return f"{count / (1 << 10):.0f}K"
    if count < 1 << 30:
        return f"{count / (1 << 20):.0f}M"
    gib = count / (1 << 30)
    return f"{gib:.1f}G" if gib < 100 else f"{gib:.0f}G"


def seconds_so_far(process: ProcessState, now: float) -> float:
    """From launch to ready, to its end, or until now."""
    if process.ready_s is not None:
        return process.ready_s
    if process.launched_at is None:
        return 0.0
    return (process.ended_at or now) - process.launched_at


def curl_line(url: str, model: str) -> str:
    """A chat completion through the gateway, as one line for a shell."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 32,
        "temperature": 0,
    }
    return f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def ready_text(state: ClusterState, detached: bool) -> str:
    """What `up` says when everything is ready: endpoints, logs, a request to try, how to stop."""
    flag = "" if state.name == "default" else f" --name {state.name}"
    down = f"sglang-pd down{flag}"
    lines = [
        f"Cluster '{state.name}' is ready after {state.ready_s or 0:.1f} s, serving {state.served_model_name}.",
        "",
    ]
    for one in state.processes:
        bootstrap = f"  bootstrap port {one.bootstrap_port}" if one.bootstrap_port else ""
        lines.append(f"  {one.name:<10} {one.url}{bootstrap}")
    lines += ["", "Logs:", *(f"  {one.log}" for one in state.processes)]
    lines += ["", "Try it:", curl_line(state.gateway.url, state.served_model_name), ""]
    lines.append(f"Stop it with `{down}`." if detached else f"Ctrl-C stops it, as does `{down}` from elsewhere.")
    return "\n".join(lines)


def failure_text(failure: Failure, lines: list[str]) -> str:
    """Which process failed and how, and the end of its log."""
    head = f"{failure.process} {failure.reason}"
    if not lines:
        return f"{head}\nIts log is empty: {failure.log}"
    rule = "-" * 72
    return "\n".join([head, f"The end of {failure.log}:", rule, *lines, rule])


def why_down(state: ClusterState) -> str:
    """Why a failed cluster is down."""
    if state.failure is None:
        return f"cluster '{state.name}' is down"
    return failure_text(state.failure, tail_of(state.failure))


def tail_of(failure: Failure) -> list[str]:
    """The end of the log of the process that failed; empty where the log is gone."""
    return tail(Path(failure.log))


def change_text(process: ProcessState, phase: Phase, now: float) -> str:
    """One line for one change, where there is no terminal to draw a table on."""
    detail = f" ({process.detail})" if process.detail else ""
    return f"[{seconds_so_far(process, now):6.1f} s] {process.name:<10} {phase.value}{detail}"


def clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
