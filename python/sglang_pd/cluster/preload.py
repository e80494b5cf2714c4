"""A process that imports what a server imports, once, and forks every server of a local cluster from there.

On a CPU most of a server's start is imports: each of its three processes imports the same modules. Here they are
imported once, in a process with one thread, and the servers are forked from it; each server then forks its scheduler
and detokenizer where upstream would spawn them. What runs is the same ``sglang.launch_server`` with the same
arguments.

``python -m sglang_pd.cluster.preload FD``: FD is one end of a stream socket pair; the other end is with
:class:`sglang_pd.cluster.preload_launcher.PreloadLauncher`. Messages are JSON, one a line: it gets
``{"argv", "log", "env"}``, and says ``{"ready": true}``, ``{"pid"}`` for each job in order, and ``{"pid", "code"}``
for each end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from sglang_pd import environ
from sglang_pd.cluster.procfs import die_with_parent

# What the three processes of a server import: the launcher, the scheduler with every model class, the detokenizer.
MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.models.registry",
    "nixl._api",
)

_active = False


@dataclass(frozen=True)
class Job:
    """``argv``: as after ``python``, so ``["-m", MODULE, ...]``."""

    argv: list[str]
    log: str
    env: dict[str, str]


def is_active() -> bool:
    """Whether this is a preload process, or was forked by one."""
    return _active


def thread_count() -> int:
    """Threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def fork_helpers(result: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``_set_envs_and_config``, which chooses the start method "spawn": fork instead, so that scheduler
    and detokenizer do not import again.

    Only where that is safe: this process must have one thread, and with data parallelism or several tokenizer workers
    upstream starts processes from threads.
    """
    import logging
    import multiprocessing

    reason = None
    if thread_count() != 1:
        reason = f"this process has {thread_count()} threads"
    elif server_args.dp_size != 1 or server_args.tokenizer_worker_num != 1:
        reason = "dp_size or tokenizer_worker_num is not 1"
    if reason:
        logging.getLogger(__name__).warning("Helper processes are spawned and import again: %s.", reason)
        return
    multiprocessing.set_start_method("fork", force=True)


def warm() -> None:
    """Import everything and attach the hooks, as the launcher would, then move all objects out of the collector's reach
    so that its passes do not copy the shared pages."""
    for name in MODULES:
        importlib.import_module(name)
    attach_hooks()
    if "prometheus_client" in sys.modules:
        # It reads PROMETHEUS_MULTIPROC_DIR when it is imported, and each server sets its own.
        raise ImportError("prometheus_client must not be imported before a server is forked")
    gc.collect()
    gc.freeze()


def attach_hooks() -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()


def serve(channel: socket.socket) -> Job | None:
    """Fork a process for each job. Returns its job in each forked process, and None here once the other end closes."""
    _say(channel, {"ready": True})
    wake_read, wake_write = socket.socketpair()
    wake_write.setblocking(False)
    wake_read.setblocking(False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wake_write.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        pending = b""
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_read in ready:
                wake_read.recv(4096)
                _report_ends(channel)
            if channel not in ready:
                continue
            data = channel.recv(65536)
            if not data:
                return None
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                job = Job(**json.loads(line))
                parent = os.getpid()
                became_read, became_write = os.pipe()
                pid = os.fork()
                if pid == 0:
                    _become(job, parent, (channel, wake_read, wake_write))
                    os.close(became_write)
                    os.close(became_read)
                    return job
                # It closes its end once it leads its own session: only then can it be told from this process.
                os.close(became_write)
                os.read(became_read, 1)
                os.close(became_read)
                _say(channel, {"pid": pid})


def _become(job: Job, parent: int, inherited: tuple[socket.socket, ...]) -> None:
    """Turn the forked child into what a fresh interpreter would be: own session, own output, default signals."""
    os.setsid()
    die_with_parent(parent, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in inherited:
        one.close()
    output = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    environ.take_over(job.env)
    import numpy
    import setproctitle

    numpy.random.seed()  # a fresh interpreter would not share its state with its siblings
    setproctitle.setproctitle(" ".join([sys.executable, *job.argv]))


def _report_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say(channel, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler has to exist for the wakeup file descriptor to be written."""


def main() -> None:
    global _active
    _active = True
    channel = socket.socket(fileno=int(sys.argv[1]))
    warm()
    # Ctrl-C reaches the whole terminal group; who stops what is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = serve(channel)
    if job is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module = job.argv[1]
    sys.argv = [module, *job.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Under its own name, so that hooks that ask is_active() see the same module as this one.
    from sglang_pd.cluster import preload

    preload.main()
