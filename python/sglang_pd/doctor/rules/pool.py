"""A decode without free KV pages: requests queue for them, and prefill waits for their metadata."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted, seconds

RULE = "pool_exhausted"
# A free pool gives pages in milliseconds. So long it takes where requests end soon; and where they do not.
QUEUES_S, STARVES_S = 1.0, 10.0
RECENT_S = 120.0
FULL = 0.85
REASONS = frozenset({"allocation_timeout", "no_memory"})


def look(case: Case) -> Iterator[Finding]:
    for view in case.decodes:
        queued = [room for room in view.live if room.phase == "allocating" and room.phase_seconds > QUEUES_S]
        failed = view.failed(REASONS, RECENT_S)
        waiting = view.queue("decode_prealloc")
        usage = usage_of(view)
        upstreams = not view.keeps_accounts and waiting and usage is not None and usage > FULL
        if not (queued or failed or upstreams):
            continue
        yield _finding(case, view, waiting, usage, len(failed))


def usage_of(view: View) -> float | None:
    """The part of the KV pool that is taken, 0 to 1; None where it is not known."""
    used, size = view.load("num_used_tokens"), view.load("max_total_num_tokens")
    return view.load("token_usage") if not size or used is None else used / size


def _finding(case: Case, view: View, waiting: float | None, usage: float | None, failures: int) -> Finding:
    queued = [room for room in view.live if room.phase == "allocating" and room.phase_seconds > QUEUES_S]
    failed = view.failed(REASONS, RECENT_S)
    oldest = max((room.phase_seconds for room in queued), default=0.0)
    evidence: list[str] = []
    against: list[str] = []
    if queued:
        evidence.append(f"{counted(len(queued), 'room')} queue for pages, up to {seconds(oldest)}")
    elif waiting:
        evidence.append(f"{waiting:.0f} in the pre-allocation queue")
    if failures:
        evidence.append(
            f"{counted(failures, 'room')} failed for want of pages within {RECENT_S:.0f} s ({failed[0].reason})"
        )
    if usage is not None:
        size = view.load("max_total_num_tokens")
        text = f"{usage:.0%} of its KV pool is taken" + (f" (of {size:.0f} tokens)" if size else "")
        (evidence if usage > FULL else against).append(text)
    retracted = view.queue("decode_retracted")
    evidence += [f"{retracted:.0f} requests were retracted to free pages"] if retracted else []
    held = sum(((rank.status.get("quarantine") or {}).get("pages") or 0) for rank in view.ranks)
    evidence += [f"{held} pages are held in quarantine: a prefill may still write to them"] if held else []
    finished = view.finished
    against += [f"{counted(finished, 'room')} ended well meanwhile: the pool turns over"] if finished else []
    rooms, total = case.refs(queued or failed)
    return Finding(
        RULE,
        Severity.FAULT if failures or oldest > STARVES_S else Severity.WARNING,
        Support.LIKELY if usage is not None and usage <= FULL else Support.SURE,
        f"{view.name}: KV pool",
        f"{view.name} has no free KV pages: {counted(total or int(waiting or 0), 'request')} "
        + ("wait for them" if not failures else "waited for them"),
        tuple(evidence),
        tuple(against),
        (
            "send less to it, or add a decode; see --max-total-tokens, --mem-fraction-static, --max-running-requests",
            "where the pages are in quarantine, look at the prefill that holds them back",
        )[: 2 if held else 1],
        min((room.since for room in queued), default=None),
        rooms,
        total or int(waiting or 0),
    )
