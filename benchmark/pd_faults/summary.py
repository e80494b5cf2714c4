"""What a soak saw, and the checks of its scrapes and of its end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from harness.faults.site import Site
from sglang.srt.disaggregation.reliable.counts import Counts, LedgerError
from sglang.srt.disaggregation.reliable.report import LoggedRoom

GIVEN_BACK_S = 5.0
SHOWN = 40


@dataclass
class Summary:
    """``started`` counts requests; ``ends`` rooms by side, outcome and reason."""

    started: int = 0
    scrapes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def ended(self, side: str, end: LoggedRoom) -> None:
        self.ends[side, end.outcome, end.reason] += 1

    def scraped(self, role: str, counts: Counts, metrics: dict[str, float]) -> None:
        """``metrics``: the totals of ``pd_rooms_*`` as rendered, by name without prefix and labels."""
        self.scrapes += 1
        try:
            counts.check()
        except LedgerError as error:
            self.problem(str(error))
        started, ended, live = (metrics[name] for name in ("started", "ended", "live"))
        if started != ended + live:
            self.problem(f"{role}'s metrics: {started:g} started, {ended:g} ended, {live:g} live")

    def text(self) -> str:
        lines = [f"{self.started} requests, {self.scrapes} scrapes, {sum(self.faults.values())} faults:"]
        lines += [f"  {count:5d} {name}" for name, count in sorted(self.faults.items())]
        lines.append("rooms by how they ended:")
        lines += [f"  {count:5d} {side}: {what} ({why})" for (side, what, why), count in sorted(self.ends.items())]
        lines.append(f"{len(self.problems)} problems" + (":" if self.problems else ""))
        lines += [f"  {text}" for text in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"  and {len(self.problems) - SHOWN} more")
        return "\n".join(lines)


def check_nothing_left(site: Site, baseline: list[dict[str, Any]], summary: Summary) -> None:
    """Every role holds no more than one of its kind did at the start, and serves a request.

    Of its descriptors, sockets excepted that NIXL leaves open (``FaultRole.sockets_left``).
    """
    for _ in range(2):
        for decode in site.decodes:
            site.transfer(decode)
    at_first = {role.spec.mode: before for role, before in zip(site.roles, baseline, strict=True)}
    end = time.monotonic() + GIVEN_BACK_S
    while True:
        spared = site.prefill.call("sockets_left")
        left = [
            f"{role.spec.mode} holds {count} {name}, {at_first[role.spec.mode][name]} at the start"
            for role in site.roles
            for name, count in role.call("resources").items()
            if count > at_first[role.spec.mode][name] + (spared if name == "descriptors" else 0)
        ]
        if not left or time.monotonic() > end:
            summary.problems += left
            return
        time.sleep(0.1)
