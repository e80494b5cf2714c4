"""Keeps of an answer what a rule or a reader may need: bundles stay small, and hold nothing of a request; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.paths import INFO, METRICS, READY, STATUS, WORKERS
from sglang_pd.doctor.shapes import objects

# Of ``/server_info``: what a prefill and a decode have to agree on, and what sizes their queues.
SETTINGS = (
    *("model_path", "served_model_name", "revision", "quantization", "dtype", "kv_cache_dtype", "page_size"),
    *("tp_size", "pp_size", "dp_size", "dcp_size", "attn_cp_size", "ep_size", "nnodes", "node_rank"),
    *("max_total_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens", "context_length"),
    *("mem_fraction_static", "disable_overlap_schedule", "cuda_graph_max_bs", "attention_backend"),
    *("speculative_algorithm", "enable_metrics", "tokenizer_worker_num", "watchdog_timeout", "max_total_num_tokens"),
    *("load_balance_method", "enable_dp_attention", "version", "startup_time", "disaggregation_mode"),
    *("disaggregation_transfer_backend", "disaggregation_bootstrap_port", "disaggregation_enable_kv_checksum"),
)
_SAMPLE = re.compile(
    r"(?P<name>sglang:(num_\w*(reqs|requests)(_total)?|token_usage|max_total_num_tokens|kv_available_tokens|"
    r"kv_used_tokens|gen_throughput|generation_tokens_total|num_aborted_requests_total|"
    r"pd_reading_age_seconds|pd_rooms_started_total))(?P<labels>\{[^}]*\})? (?P<value>\S+)"
)
WORKER = ("url", "worker_type", "is_healthy", "status", "load", "bootstrap_port", "disabled_health_check")
MOST_TEXT = 600
LONG = ("timeline", "bytes", "pages", "incarnation")


def trimmed(reply: Reply) -> Reply:
    """The same answer, shorter."""
    path, body = reply.path.partition("?")[0], reply.body
    if not reply.ok:
        return replace(reply, body=body[:MOST_TEXT] if isinstance(body, str) else body)
    if path == METRICS and isinstance(body, str):
        return replace(reply, body=metrics(body))
    if path == INFO and isinstance(body, dict):
        return replace(reply, body={name: body[name] for name in SETTINGS if name in body})
    if path == WORKERS and isinstance(body, dict):
        workers = objects(body, "workers")
        return replace(
            reply, body={"workers": [{name: one[name] for name in WORKER if name in one} for one in workers]}
        )
    if path == "/v1/loads" and isinstance(body, dict):
        loads = objects(body, "loads")
        return replace(reply, body={"version": body.get("version"), "loads": [_load(one) for one in loads]})
    if path == "/pd/rooms" and isinstance(body, dict):
        return replace(reply, body={**body, "ranks": [_rank(one) for one in objects(body, "ranks")]})
    return replace(reply, body=body[:MOST_TEXT]) if isinstance(body, str) else reply


def without_doubles(replies: Mapping[str, Reply]) -> dict[str, Reply]:
    """The same without what ``/pd/status`` says better, where it was answered."""
    found = dict(replies)
    status, ready = found.get(STATUS), found.get(READY)
    if status is None or not status.ok:
        return found
    found.pop(METRICS, None)
    if ready is not None and isinstance(ready.body, dict):
        ranks = [{name: value for name, value in one.items() if name != "said"} for one in objects(ready.body, "ranks")]
        found[READY] = replace(ready, body={**ready.body, "ranks": ranks})
    return found


def metrics(text: str) -> dict[str, float]:
    """The samples that are kept, added up over their labels, by name without ``sglang:``."""
    found: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match["value"])
        except ValueError:
            continue
        name = match["name"].removeprefix("sglang:")
        found[name] = found.get(name, 0.0) + value
    return found


def _rank(one: Mapping[str, Any]) -> dict[str, Any]:
    said = one.get("said")
    if not isinstance(said, dict) or not isinstance(said.get("rooms"), list):
        return dict(one)
    return {**one, "said": {**said, "rooms": [_room(room) for room in objects(said, "rooms")]}}


def _room(one: Mapping[str, Any]) -> dict[str, Any]:
    """Of a room that went well, that it did."""
    done = one.get("outcome") == "success"
    return {name: value for name, value in one.items() if not (done and name in LONG)}


def _load(one: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in one.items() if not isinstance(value, dict | list)}
    return {**kept, "disaggregation": one.get("disaggregation"), "queues": one.get("queues")}
