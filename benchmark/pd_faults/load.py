"""The requests of a soak: so many at a time, each with pages of its own, and what each may come to."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

from harness.faults.request import Request, Upto
from harness.faults.site import DEADLINES_S, Site
from harness.managers import RoleProcess
from pd_faults.disturb import Disturbance
from pd_faults.summary import Summary
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.report import parse_warning_line

SCRAPE_S = 0.1
AUDIT_S = 1.0
ABORTS = 0.1
"""The share of requests that one side aborts, at some step."""
# A request that comes this long after a fault has to succeed, in seconds: what the fault began has to end first.
SETTLE_S = 1.0
# What a request may take from its start: every phase to its deadline, and the second in which the other side is told.
LIMIT_S = 2 * sum(DEADLINES_S.values()) + 2
SIDES = ("prefill", "decode")


@dataclass
class Running:
    """``met``: the faults of its lifetime."""

    request: Request
    decode: RoleProcess
    slot: int
    started: float
    abort: tuple[str, int] | None
    met: list[Disturbance] = field(default_factory=list)
    aborted: bool = False
    steps: int = 0


class Load:
    """Both schedulers of every role. ``slots`` of pages are reused in turn, as late as may be."""

    def __init__(self, site: Site, summary: Summary, chance: random.Random, requests: int) -> None:
        self._site, self._summary, self._chance, self._requests = site, summary, chance, requests
        pages = site.prefill.spec.pages
        self._size = pages // (4 * requests)
        self._slots = deque(range(4 * requests))
        self._running: list[Running] = []
        self._recent: list[tuple[float, Disturbance]] = []
        self._now: Disturbance | None = None
        self._scraped = self._audited = 0.0

    def run(self, seconds: float) -> None:
        """Serve requests for this long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._fill()
            self._round()

    def disturbed_by(self, disturbance: Disturbance) -> None:
        """A fault begins: the requests that live now meet it, and so do those that start before it is over."""
        # What the killed process had to tell is gone with it.
        self._audit()
        self._now = disturbance
        for one in self._running:
            one.met.append(disturbance)

    def after_disturbance(self) -> None:
        """The processes may be others now."""
        living = set(map(id, self._site.roles))
        for one in self._running:
            for side in SIDES:
                role = getattr(one.request, side)
                if role is not None and id(role) not in living:
                    one.request.lost(side)

    def disturbance_over(self) -> None:
        assert self._now is not None
        self._recent.append((time.monotonic(), self._now))
        self._now = None

    def finish(self) -> None:
        """No new request; those that run come to their end."""
        end = time.monotonic() + LIMIT_S
        while self._running and time.monotonic() < end:
            self._round()
        self._audit()

    def _fill(self) -> None:
        if self._site.prefill in self._site.standing:
            return
        decodes = [decode for decode in self._site.decodes if decode not in self._site.standing]
        while len(self._running) < self._requests and self._slots and decodes:
            self._start(self._chance.choice(decodes))

    def _start(self, decode: RoleProcess) -> None:
        slot = self._slots.popleft()
        count = self._chance.randint(2, self._size)
        pages = [slot * self._size + index for index in range(self._size)]
        where = self._chance.sample(pages, count)
        request = self._site.request(decode, pages[:count], where)
        abort = (self._chance.choice(SIDES), self._chance.randint(1, 8)) if self._chance.random() < ABORTS else None
        one = Running(request, decode, slot, time.monotonic(), abort)
        one.met = [fault for over, fault in self._recent if over > one.started - SETTLE_S]
        self._recent = [(over, fault) for over, fault in self._recent if over > one.started - SETTLE_S]
        if self._now is not None:
            one.met.append(self._now)
        request.upto = Upto.END
        request.open("prefill")
        self._running.append(one)
        self._summary.started += 1

    def _round(self) -> None:
        for one in list(self._running):
            one.request.still = {side for side in SIDES if getattr(one.request, side) in self._site.standing}
            self._step(one)
        now = time.monotonic()
        if now - self._scraped > SCRAPE_S:
            self._scraped = now
            self._scrape()
        if now - self._audited > AUDIT_S:
            self._audit()

    def _step(self, one: Running) -> None:
        request = one.request
        one.steps += 1
        if request.decode is not None and not request.opened("decode") and "decode" not in request.still:
            request.try_open_decode()
        request.step()
        if one.abort is not None and one.steps >= one.abort[1]:
            side = one.abort[0]
            living = getattr(request, side) is not None and side not in request.still
            if living and request.opened(side) and not request.done(side):
                request.abort(side)
                one.aborted = True
            one.abort = None
        finished = request.over and (request.opened("decode") or request.decode is None or request.done("prefill"))
        if finished and not request.still:
            self._close(one)
        elif time.monotonic() - one.started > LIMIT_S and not request.still:
            held = "" if request.held_s is None else f", pages held for {request.held_s:.1f} s"
            self._summary.problem(
                f"room {request.room} is not over after {LIMIT_S:g} s: {request.texts}{held}; it met {names(one)}"
            )
            self._close(one)

    def _close(self, one: Running) -> None:
        self._running.remove(one)
        self._slots.append(one.slot)
        request = one.request
        for text in request.problems:
            self._summary.problem(f"room {request.room}: {text}; it met {names(one)}")
        allowed: set[Reason] = set().union(*(fault.reasons for fault in one.met))
        if one.aborted:
            allowed |= {Reason.CLIENT_ABORT, Reason.PREFILL_ABORT, Reason.DECODE_ABORT}
        for side in SIDES:
            role = getattr(request, side)
            if role is None or not request.opened(side):
                continue
            found = role.call("end_of", request.room)
            if found is None:
                self._summary.problem(f"room {request.room} did not end on {side}; it met {names(one)}")
                continue
            line, _, times = found
            end = parse_warning_line(line)
            self._summary.ended(side, end)
            if times != 1:
                self._summary.problem(f"room {request.room} ended {times} times on {side}")
            if role.call("lines", request.room) != int(end.outcome is Outcome.FAILED):
                self._summary.problem(
                    f"room {request.room} {end.outcome} on {side}: not one line in the log for a failure"
                )
            if end.outcome is not Outcome.SUCCESS and end.reason not in allowed:
                self._summary.problem(f"room {request.room} ended with {end.reason} on {side}; it met {names(one)}")

    def _scrape(self) -> None:
        for role in self._site.roles:
            if role not in self._site.standing:
                self._summary.scraped(role.spec.mode, role.call("counts"), role.call("metrics"))

    def _audit(self) -> None:
        self._audited = time.monotonic()
        for role in self._site.roles:
            if role not in self._site.standing:
                for text in role.call("audit"):
                    self._summary.problem(f"{role.spec.mode}: {text}")


def names(one: Running) -> str:
    faults = ", ".join(fault.name for fault in one.met) or "no fault"
    return faults + (", an abort" if one.aborted else "")
