"""Gathers the evidence, from all targets at once and within the timeout; reads only."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from sglang_pd.doctor import followup, gpus, listeners, masking
from sglang_pd.doctor.evidence import Server, Snapshot, from_data, to_data
from sglang_pd.doctor.server import Gathered, Options, gather
from sglang_pd.doctor.targets import Target
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.version import __version__

# For a target that did not come back in time with what it has.
GRACE_S = 0.3
FOLLOW_UP_S = 1.0
LATE_S = 2.0


def snapshot(targets: Sequence[Target], options: Options) -> Snapshot:
    """What all targets showed, without secrets. Takes ``options.timeout`` at most, and a moment."""
    start, at = time.monotonic(), time.time()
    deadline = Deadline(options.timeout)
    listening = Task(listeners.by_port)
    cards = Task(gpus.read, options.timeout)
    tasks = [(target, Task(gather, target, options, deadline, listening)) for target in targets]
    gaps: list[str] = []
    found = []
    patience = Deadline(options.timeout + GRACE_S)
    for target, task in tasks:
        try:
            found.append(task.result(patience))
        except TimeoutError:
            found.append(Gathered(Server(target.name, target.role, target.url, expected_pid=target.pid), set()))
            gaps.append(f"{target.name}: its evidence was not gathered in time")
    secrets = {one for of_one in found for one in of_one.secrets} | ({options.api_key} if options.api_key else set())
    asked = Deadline(max(GRACE_S, min(FOLLOW_UP_S, deadline.left)))
    servers = followup.ask([one.server for one in found], {one.server.name: one.key for one in found}, asked)
    try:
        cards_found, problem = cards.result(Deadline(max(deadline.left, GRACE_S)))
    except TimeoutError:
        cards_found, problem = None, "nvidia-smi did not answer in time"
    gaps += [problem] if problem else []
    seconds = round(time.monotonic() - start, 3)
    if seconds > options.timeout + LATE_S:
        gaps.append(
            f"this took {seconds:.0f} s: the machine of the doctor is overloaded, and its view of others blurred"
        )
    whole = Snapshot(
        at=at,
        host=socket.gethostname(),
        timeout=options.timeout,
        servers=servers,
        seconds=seconds,
        gpus=cards_found,
        gaps=gaps,
        doctor=f"sglang-pd {__version__}",
        utc_offset=float(time.localtime(at).tm_gmtoff),
    )
    return from_data(masking.masked(to_data(whole), secrets))
