"""Prefill and decode that cannot work together: pages, dtype, parallelism, or package versions differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import counted

RULE = "layout_mismatch"
REASONS = frozenset({"peer_incompatible", "length_mismatch", "nixl_mismatch"})
# What both sides must agree on; and what they had better.
MUST = ("page_size", "kv_cache_dtype")
SHOULD = ("model_path", "dtype", "quantization", "version")
VARIABLES = ("SGLANG_DSV4_BF16_INDEX_K",)


def look(case: Case) -> Iterator[Finding]:
    for prefill in case.prefills:
        for decode in case.decodes:
            found = _between(case, prefill, decode)
            if found is not None:
                yield found


def _between(case: Case, prefill: View, decode: View) -> Finding | None:
    differences = list(differing(prefill, decode))
    failed = [room for view in (prefill, decode) for room in view.failed(REASONS)
              if case.peer_of(view, room) in (prefill, decode)]  # fmt: skip
    agents = {rank.status.get("agent"): rank for rank in decode.ranks}
    refused = [one for rank in prefill.ranks for one in rank.peers.get("refused") or [] if one.get("agent") in agents]
    since_start = [
        room for room in failed if (room.ended_at or 0.0) > max(prefill.started_at or 0, decode.started_at or 0)
    ]
    must = any(must for must, _ in differences)
    if not (refused or since_start or must):
        return None
    evidence = [f"{prefill.name} has refused {decode.name}: {one.get('text')}" for one in refused]
    if failed:
        evidence.append(f"{counted(len({room.room for room in failed}), 'room')} failed with {failed[0].reason}")
    evidence += [text for _, text in differences]
    good = [room for room in decode.rooms if room.outcome == "success" and case.peer_of(decode, room) is prefill]
    against = [f"{counted(len(good), 'room')} between them ended well"] if good else []
    rooms, total = case.refs(failed)
    proven = bool(refused or since_start)
    return Finding(
        RULE,
        Severity.FAULT if proven else Severity.WARNING,
        Support.SURE
        if proven and any(must for must, _ in differences)
        else Support.LIKELY
        if proven
        else Support.POSSIBLE,
        f"{decode.name} → {prefill.name} (registration)",
        f"{prefill.name} and {decode.name} are configured differently",
        tuple(evidence),
        tuple(against),
        (f"start {decode.name} or {prefill.name} again with the same flags and variables as the other",),
        min((room.started_at for room in since_start), default=None) or decode.started_at,
        rooms,
        total,
    )


def differing(prefill: View, decode: View) -> Iterator[tuple[bool, str]]:
    """What differs between two servers, and whether they must agree on it."""
    for name in (*MUST, *SHOULD):
        one, other = prefill.setting(name), decode.setting(name)
        if one is not None and other is not None and one != other:
            yield name in MUST, f"{name} is {one} on {prefill.name}, {other} on {decode.name}"
    for name in VARIABLES:
        one, other = _switch(prefill, name), _switch(decode, name)
        if one is not None and other is not None and one != other:
            yield True, f"{name} is {one} on {prefill.name}, {other} on {decode.name}"


def _switch(view: View, name: str) -> Any:
    """A variable as a rank that speaks of its variables has it: not set is 0."""
    if not any("environment" in rank.status for rank in view.ranks):
        return None
    return view.environment.get(name, "0").lower() in ("1", "true", "yes", "y")
