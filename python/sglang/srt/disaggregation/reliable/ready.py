"""What one scheduler rank says of itself: are the threads that carry its KV path up, and does its loop come round?

Said by a thread of its own, so also while the loop is blocked, and whichever classes carry the transfer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sglang.srt.disaggregation.reliable import status_routes, status_scheduler
from sglang.srt.disaggregation.reliable.control import ThreadState
from sglang.srt.disaggregation.reliable.endpoint import Endpoint
from sglang_pd import ranks
from sglang_pd.environ import envs
from sglang_pd.ready import PATH

Threads = Mapping[str, ThreadState]

# Python names a thread after its function: ``Thread-7 (bootstrap_thread_guarded)``.
UPSTREAMS = ("bootstrap_thread_guarded", "decode_listener_thread", "transfer_worker")

_loop_at: float | None = None
_endpoint: Endpoint | None = None


def loop_turns(*args: Any, **kwargs: Any) -> None:
    """BEFORE hook on ``Scheduler.ingest_requests``, which every event loop calls once a round, idle or not."""
    global _loop_at
    _loop_at = time.monotonic()
    if args:
        status_scheduler.turns.note(args[0], _loop_at)


def announce(manager: Any, queue: Any) -> None:
    """AFTER hook on ``_init_kv_manager`` of either role: from now on this rank can be asked."""
    from sglang.srt.runtime_context import get_parallel

    global _endpoint
    if _endpoint is None:
        _endpoint = Endpoint()
        _endpoint.start()
    role = manager.disaggregation_mode.value
    watched, dp_rank = watcher(manager, threading.enumerate()), get_parallel().dp_rank
    name = rank_name(dp_rank, queue.pp_rank, queue.tp_rank)
    place = {"tp_rank": queue.tp_rank, "pp_rank": queue.pp_rank, "dp_rank": dp_rank}
    _endpoint.routes[PATH] = speaker(role, watched)
    _endpoint.routes |= status_routes.routes(manager, name, place, watched, loop_age_s)
    ranks.announce(ranks.folder(), name, role, _endpoint.port)


def rank_name(dp_rank: int | None, pp_rank: int, tp_rank: int) -> str:
    """Unique among the schedulers of a server: ``tp0``, with other coordinates before it where there are any."""
    dp = "" if dp_rank is None else f"dp{dp_rank}-"
    pp = f"pp{pp_rank}-" if pp_rank else ""
    return f"{dp}{pp}tp{tp_rank}"


def loop_age_s() -> float | None:
    """Seconds since the scheduler's loop last came round; None where it never did."""
    return None if _loop_at is None else time.monotonic() - _loop_at


def speaker(role: str, threads: Callable[[], Threads]) -> Callable[[], dict[str, Any]]:
    """What answers for a manager, of ours or of upstream's, whose ``threads`` are asked for each answer."""
    timeout_s = envs.SGLANG_PD_LOOP_TIMEOUT.get()
    since = time.monotonic()

    def ready() -> dict[str, Any]:
        return answer(role, threads(), time.monotonic() - (_loop_at or since), timeout_s)

    return ready


def watcher(manager: Any, running: Iterable[threading.Thread]) -> Callable[[], Threads]:
    """What tells the threads of a manager. ``running``: the threads of this process, the manager's among them; upstream
    keeps no list of its own."""
    if hasattr(manager, "control"):
        return lambda: threads_of_ours(manager)
    theirs = [thread for thread in running if _function(thread) in UPSTREAMS]
    return lambda: threads_of_upstream(theirs)


def threads_of_ours(manager: Any) -> dict[str, ThreadState]:
    """``manager``: a ``ReliableKVManager``."""
    return {**manager.control.states(), "deadlines": _watched(manager.watch.is_alive())}


def threads_of_upstream(threads: Iterable[threading.Thread]) -> dict[str, ThreadState]:
    return {thread.name: _watched(thread.is_alive()) for thread in threads}


def _watched(alive: bool) -> ThreadState:
    return ThreadState(up=alive, restarts=0, last_error=None if alive else "it ended, and nothing restarts it")


def _function(thread: threading.Thread) -> str:
    return thread.name.partition("(")[2].rstrip(")")


def answer(role: str, threads: Threads, loop_age_s: float, loop_timeout_s: float) -> dict[str, Any]:
    """The body; pure. ``loop_age_s``: seconds since the scheduler's loop last came round."""
    reasons = [f"control thread {name} is down: {state.last_error}" for name, state in threads.items() if not state.up]
    if loop_age_s > loop_timeout_s:
        reasons.append(f"the scheduler's loop has not come round for {loop_age_s:.0f} s")
    return {
        "ready": not reasons,
        "reasons": reasons,
        "role": role,
        "loop_age_seconds": round(loop_age_s, 3),
        "threads": {name: asdict(state) for name, state in threads.items()},
    }
