"""What is checked before a server loads anything: input that upstream notices late, obscurely or never.

Seen on 0.5.23: with its HTTP port taken the server loads the model, fails to bind and hangs; with its bootstrap port
taken a prefill reports itself healthy and no decode can ever reach it; a model folder that does not exist is called a
malformed repository name.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from sglang_pd import cpu
from sglang_pd.cluster.ports import holder

CPU_ATTENTION_BACKENDS = ("torch_native", "intel_amx")


def check_input(server_args: Any, previous: Any) -> None:
    """Resolution step ``handle_model_source_paths``, wrapped: refuse a model or device that cannot be served."""
    refuse(
        model_problem(server_args.model_path),
        *(cpu_problems(server_args.device, server_args.attention_backend) if cpu.is_active() else ()),
    )
    previous(server_args)


def check_ports(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE hook on the HTTP ``launch_server``: refuse a port that is taken."""
    wanted = {"--port": server_args.port}
    if server_args.disaggregation_mode == "prefill":
        wanted["--disaggregation-bootstrap-port"] = server_args.disaggregation_bootstrap_port
    refuse(*(port_problem(flag, server_args.host, port) for flag, port in wanted.items()))


def refuse(*problems: str | None) -> None:
    """Exit with code 2 where there is a problem, naming all of them."""
    found = [problem for problem in problems if problem]
    if found:
        print(f"sglang-pd: refusing to start: {'; '.join(found)}", file=sys.stderr, flush=True)
        raise SystemExit(2)


def model_problem(model_path: str) -> str | None:
    """What is wrong with a local model path; None for a good one and for anything that is no local path."""
    path = Path(model_path).expanduser()
    local = path.is_absolute() or model_path.startswith(("./", "../", "~"))
    if not path.exists():
        return f"--model-path {model_path} does not exist" if local else None
    if path.is_dir() and not any(
        (path / name).is_file() for name in ("config.json", "params.json", "model_index.json")
    ):
        return f"--model-path {model_path} is not a model folder: it has no config.json"
    return None


def cpu_problems(device: str | None, attention_backend: str | None) -> list[str]:
    """What an explicit device or attention backend asks for that a machine without a GPU does not have."""
    problems = []
    if device not in (None, "cpu"):
        problems.append(f"--device {device} was given, and this machine has no GPU that torch can use; allowed: cpu")
    if attention_backend not in (None, *CPU_ATTENTION_BACKENDS):
        allowed = ", ".join(CPU_ATTENTION_BACKENDS)
        problems.append(f"--attention-backend {attention_backend} needs a GPU; allowed on a CPU: {allowed}")
    return problems


def port_problem(flag: str, host: str, port: int) -> str | None:
    """Why a server could not listen on ``host:port``, naming the holder where the system tells; None where it could."""
    try:
        address = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, OverflowError) as error:
        return f"--host {host} {flag} {port}: {error}"
    with socket.socket(address[0], socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address[4])
        except OSError as error:
            who = holder(port)
            return f"{flag} {port} on {host}: {os.strerror(error.errno or 0)}{f', held by {who}' if who else ''}"
    return None
