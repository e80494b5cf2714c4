"""A gateway that does not send requests to a server that is there, or has nobody to send them to."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.paths import READY, WORKERS
from sglang_pd.doctor.shapes import objects
from sglang_pd.doctor.view import View

RULE = "gateway"


def look(case: Case) -> Iterator[Finding]:
    for gateway in case.gateways:
        body = gateway.body(WORKERS)
        if not isinstance(body, dict):
            continue
        workers = {str(one.get("url")).rstrip("/"): one for one in objects(body, "workers")}
        for view in case.servers:
            ready = view.server.replies.get(READY)
            # Whether it is ready by the server's own word; stock upstream has no such word.
            well = view.answers and not (ready is not None and ready.status == 503)
            worker = workers.get(view.server.url or "")
            if worker is None and workers and well:
                yield _finding(gateway, view, f"{gateway.name} does not know {view.name}", Support.POSSIBLE,
                               f"its workers are {', '.join(sorted(workers))}",
                               "its URL may be another one there")  # fmt: skip
            elif worker is not None and not worker.get("is_healthy", True) and well:
                yield _finding(gateway, view, f"{gateway.name} takes {view.name} for unhealthy, and it is ready",
                               Support.LIKELY, f"status {worker.get('status')}",
                               "its next probe may say otherwise")  # fmt: skip


def _finding(gateway: View, view: View, headline: str, support: Support, evidence: str, against: str) -> Finding:
    return Finding(
        RULE,
        Severity.WARNING,
        support,
        f"{gateway.name} → {view.name}",
        headline,
        (evidence,),
        (against,),
        (f"look at the log of {gateway.name}, and at the network from there to {view.server.url}",),
    )
