"""Failed rooms, as the log tells them and as the metrics count them; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MARK = "PD room failed: "
ENDED = "sglang:pd_rooms_ended_total"
# Upstream's own counters of failures: they tell neither reason nor request.
UPSTREAM = ("sglang:num_bootstrap_failed_reqs_total", "sglang:num_transfer_failed_reqs_total")

Counts = Mapping[str, int]


def logged(log: str) -> Counter[str]:
    """Reasons in the lines of failed rooms."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        _, mark, fields = line.partition(MARK)
        if mark:
            found[dict(one.split("=", 1) for one in fields.split() if "=" in one)["reason"]] += 1
    return found


def counted(metrics: str) -> Counter[str]:
    """Reasons of failed rooms in a server's ``/metrics``; reasons that never came are left out."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == ENDED and sample.labels["outcome"] == "failed" and sample.value:
                found[sample.labels["reason"]] += int(sample.value)
    return found


def upstream_counted(metrics: str) -> Counter[str]:
    """Upstream's counters of failed hand-overs, by their names without the prefix."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in UPSTREAM and sample.value:
                found[sample.name.removeprefix("sglang:").removesuffix("_total")] += int(sample.value)
    return found


def gateway_counted(metrics: str) -> dict[str, float]:
    """The gateway's retries and errors: the sum of each of its counters that has one of these in its name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.endswith("_total") and ("retr" in sample.name or "error" in sample.name):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def total(servers: list[dict[str, Any]], what: str) -> dict[str, int]:
    """The counts ``what`` of all servers together, most first."""
    found: Counter[str] = Counter()
    for one in servers:
        found.update(one[what])
    return dict(found.most_common())


def disagreements(servers: list[dict[str, Any]]) -> list[str]:
    """Servers whose log and metrics differ. Those of a process that was ended are not compared: its counters went with
    it, a moment older than its log."""
    return [
        f"{one['name']}: the log has {one['logged']}, the metrics {one['counted']}"
        for one in servers
        if one["counted"] is not None and one["logged"] != one["counted"]
    ]
