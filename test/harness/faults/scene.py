"""One cell of the matrix as it happens: requests in a phase, the fault, what each side knew and when, what is left."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.faults import signals
from harness.faults.cells import Cell
from harness.faults.fault import Phase, Side
from harness.faults.frames import hold
from harness.faults.request import Request, Upto
from harness.faults.site import DEADLINES_S, QUARANTINE_S, Site
from harness.faults.verdict import GRACE_S, End, Record, disagreements, problems_of
from harness.managers import TRANSFERRING, WAITING
from sglang.srt.disaggregation.reliable.report import parse_warning_line

# A request goes through one phase with a deadline after the fault, and at most into another; then its pages are held.
LIMIT_S = 2 * max(DEADLINES_S.values()) + 2 * GRACE_S + QUARANTINE_S
BASELINE_S = 3.0
SETUP_S = 5.0
# A scheduler's call that takes longer than this stands in the way of every request of its process.
HELD_UP_S = 1.0


class Scene:
    """Fills ``record`` in."""

    def __init__(self, site: Site, cell: Cell, record: Record) -> None:
        self.site, self.cell, self.record = site, cell, record
        self.requests: list[Request] = []
        self.struck_at = 0.0
        self.replaced = False
        self._spared: list[float] = []
        self._spared_before = 0.0
        self._frozen = False
        self._collected = 0
        self._before = [role.call("resources") for role in site.roles]
        self._sockets_before = [role.call("connections") for role in site.roles]
        self._left_before = site.prefill.call("sockets_left")
        if cell.spares_a_peer:
            self._spared_before = statistics.median(site.transfer(site.decodes[1]) for _ in range(3))

    @property
    def request(self) -> Request:
        return self.requests[0]

    @property
    def side(self) -> Side:
        return self.cell.side

    # Before the fault.

    def bring(self, phase: Phase | None = None, in_flight: bool = False) -> None:
        """Requests in ``phase`` (the cell's by default): one, and one of the second decode where the fault strikes it
        too. ``in_flight``: transferring means that a write is posted and cannot end, because decode stands still."""
        phase = phase or self.cell.phase
        decodes = self.site.decodes if self.cell.strikes_every_peer else [self.site.decode]
        self.requests += [self.site.request(decode) for decode in decodes]
        for request in self.requests:
            request.open()
            if phase is Phase.BOOTSTRAPPING:
                continue
            self._reach(request, Upto.WAITING, WAITING)
            if phase is Phase.TRANSFERRING:
                if in_flight:
                    self._freeze(request)
                self._reach(request, Upto.TRANSFERRING, TRANSFERRING)
                if not in_flight:
                    self._wait(request, lambda one=request: self._written(one), "the first chunk is written")
            elif phase is Phase.UNSEEN:
                rule = self.site.relay.rule("delivered", hold, request.room)
                request.upto = Upto.END
                self._wait(request, lambda r=rule, one=request: r.hits and one.done("prefill"), "success is reported")
            elif phase is Phase.ABORTING:
                rule = self.site.relay.rule("abort", hold, request.room)
                request.abort("decode")
                assert rule.wait(), "decode sent no abort"

    def _reach(self, request: Request, upto: Upto, status: int) -> None:
        request.upto = upto
        self._wait(request, lambda: request.status("prefill") == status, f"prefill's status is {status}")

    def _wait(self, request: Request, condition: Callable[[], Any], what: str) -> None:
        assert request.drive(condition, SETUP_S), f"not within {SETUP_S:g} s: {what}; {request.texts}"

    def _written(self, request: Request) -> bool:
        return self.site.prefill.call("writes_outstanding", request.room) == 0

    def _freeze(self, request: Request) -> None:
        assert request.decode is not None
        signals.stop(request.decode.pid)
        request.still.add("decode")
        self._frozen = True

    def thaw(self) -> None:
        """Decodes that stood still for a write in flight go on."""
        for request in self.requests if self._frozen else []:
            if request.decode is not None:
                signals.go_on(request.decode.pid)
            request.still.discard("decode")
        self._frozen = False

    # The fault.

    def strike(self) -> None:
        """The fault comes now."""
        self.struck_at = time.monotonic()

    def kill(self) -> None:
        self.site.kill(self.side)
        for request in self.requests:
            request.lost(self.side)

    def replace(self, same_ports: bool = False, **changes: object) -> None:
        self.replaced = True
        self.site.replace(self.side, same_ports, **changes)

    def replace_decode(self) -> None:
        """A decode that prefill has not met takes the place of the first one."""
        self.replaced = True
        self.site.kill(Side.DECODE)
        self.site.replace(Side.DECODE)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        role = self.site.role(self.side)
        for request in self.requests:
            request.still.add(self.side)
        with signals.stopped(role.pid):
            yield
        self.thaw()
        for request in self.requests:
            request.still.discard(self.side)

    def drive(self, seconds: float) -> None:
        """Both schedulers go on for this long, and so does the other peer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._step()

    def finish(self) -> None:
        """Nothing is held back any more: every request goes on until it is over."""
        self.thaw()
        self.site.relay.release()
        for request in self.requests:
            request.upto = Upto.END
        end = time.monotonic() + LIMIT_S
        while not all(request.over for request in self.requests):
            if time.monotonic() > end:
                silent = [f"{r.room}: {[s for s in Side if not r.done(s)]}" for r in self.requests if not r.over]
                self.record.problems.append(f"not over {LIMIT_S:g} s after the fault: room {'; '.join(silent)}")
                return
            self._step()

    def next(self) -> None:
        """The next request, at every peer that the fault struck."""
        for decode in self.site.decodes if self.cell.strikes_every_peer else [self.site.decode]:
            try:
                self.record.next_s = max(self.site.transfer(decode), self.record.next_s or 0)
            except AssertionError as error:
                self.record.problems.append(f"the next request failed: {error}")

    def _step(self) -> None:
        for request in self.requests:
            request.step()
        if self.cell.spares_a_peer:
            try:
                self._spared.append(self.site.transfer(self.site.decodes[1]))
            except AssertionError as error:
                self.record.problems.append(f"a request of the other peer failed: {error}")
        else:
            time.sleep(0.002)

    # After it.

    def close(self) -> None:
        """Look at what came of it; everything wrong is in the record's ``problems``."""
        self.site.relay.clear()
        self.collect()
        if self.record.next_s is None:
            # Nothing else can be told of a site where no request gets through.
            return
        if self.replaced:
            self.site.warm()
        self.record.problems += [
            f"the test's {side} scheduler was held up for {seconds:.2f} s by one call"
            for request in self.requests
            for side, seconds in request.slowest_s.items()
            if seconds > HELD_UP_S
        ]
        if self._spared:
            self.record.untouched_s = (max(self._spared), self._spared_before)
            if max(self._spared) > self._spared_before + 1:
                self.record.problems.append(f"a request of the other peer took {max(self._spared):.2f} s")
        self.record.reusable = not self.record.problems
        self._check_baseline()

    def collect(self) -> None:
        """Note how the requests ended; by itself where a side that is asked has no long life left."""
        for request in self._uncollected():
            self.record.problems += request.problems
            self._collect(request)
            self._note_release(request)

    def _note_release(self, request: Request) -> None:
        if request is self.request and request.released is not None:
            self.record.released = request.released, request.released_s or 0.0
        if request.released == "timeout" and not self.cell.fault.leaves_doubt:
            self.record.problems.append("decode gave the pages back without a proof that nothing writes to them")

    def _uncollected(self) -> list[Request]:
        found = self.requests[self._collected :]
        self._collected = len(self.requests)
        return found

    def _collect(self, request: Request) -> None:
        for side in Side:
            role = getattr(request, side)
            if role is None or not request.opened(side):
                continue
            found = role.call("end_of", request.room)
            if found is None:
                self.record.problems.append(f"room {request.room} never ended on {side}")
                continue
            line, at, times = found
            lines = role.call("lines", request.room)
            end = End(side, parse_warning_line(line), at - self.struck_at, at, times, lines)
            if request is self.request:
                self.record.ends.append(end)
            self.record.problems += problems_of(end)
        self.record.problems += disagreements(self.cell, self.record.ends) if request is self.request else []

    def _check_baseline(self) -> None:
        start = time.monotonic()
        while more := self._more_than_before():
            if time.monotonic() - start > BASELINE_S:
                pairs = zip(self.site.roles, self._sockets_before, strict=True)
                new = [role.call("connections") - known for role, known in pairs]
                text = f"not given back after {BASELINE_S:g} s: {'; '.join(more)}"
                self.record.problems.append(f"{text}; new connections: {new}")
                return
            time.sleep(0.02)
        self.record.baseline_s = time.monotonic() - start
        self._note_sockets_due()

    def _spare(self) -> int:
        """How many more sockets than before may be open, on either side."""
        return self.site.sockets_due + max(0, self.site.prefill.call("sockets_left") - self._left_before)

    def _note_sockets_due(self) -> None:
        """What the connections made anew have still to open, at most what one to each decode has."""
        pairs = zip(self.site.roles, self._before, strict=True)
        opened = max(0, *(role.call("resources")["descriptors"] - before["descriptors"] for role, before in pairs))
        most = self.site.prefill.call("sockets_of_one") * len(self.site.decodes)
        self.site.sockets_due = min(self._spare() - opened, most)

    def _more_than_before(self) -> list[str]:
        spare = self._spare()
        return [
            f"{role.spec.mode} {index}: {count - before[name]} {name}"
            for index, (role, before) in enumerate(zip(self.site.roles, self._before, strict=True))
            for name, count in role.call("resources").items()
            if count > before[name] + (spare if name == "descriptors" else 0)
        ]
