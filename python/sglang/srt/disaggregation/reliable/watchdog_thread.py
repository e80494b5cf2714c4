"""Looks whether rooms get on, and reports where they do not; a thread that needs nothing of the scheduler's loop."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.runtime_context import get_parallel

from sglang.srt.disaggregation.reliable import (
    ready,
    status_routes,
    watchdog_files,
    watchdog_ranks,
    watchdog_report,
    watchdog_stacks,
)
from sglang.srt.disaggregation.reliable.control import ThreadState
from sglang.srt.disaggregation.reliable.phases import PrefillPhase
from sglang.srt.disaggregation.reliable.room import RoomRecord
from sglang.srt.disaggregation.reliable.status import Moment
from sglang.srt.disaggregation.reliable.status_lanes import Lane
from sglang.srt.disaggregation.reliable.watch import deadlines_of
from sglang.srt.disaggregation.reliable.watchdog import (
    LOOP,
    Departures,
    Group,
    Stall,
    Stalls,
    Still,
    soft_limits,
    stills,
)
from sglang.srt.disaggregation.reliable.watchdog_cause import Cause, Diagnosis, Evidence, Rank, diagnose, usual
from sglang.srt.disaggregation.reliable.watchdog_report import Scene
from sglang_pd.environ import envs
from sglang_pd.ranks import Rank as Announced
from sglang_pd.status import PEERS, STATUS

logger = logging.getLogger(__name__)

THREAD = "watchdog"
# A rank that does not speak for its server waits so much longer, in seconds: the one that does reports first.
SILENT_S = 2.0
# A loop that comes round no less often than this is not blocked: an idle one does so every second.
IDLE_LOOP_S = 2.0


class Watchdog:
    """The watchdog of one ``ReliableKVManager``."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._ledger = manager.accounts.ledger
        self._departures = Departures()
        self._ledger.on_end.add(self._departures.ended)
        soft_s, role = envs.SGLANG_PD_STALL_SECONDS.get(), self._ledger.role
        limits = soft_limits(role, soft_s, deadlines_of(role).seconds, envs.SGLANG_PD_TRANSFER_TIMEOUT.get())
        limits[LOOP] = max(soft_s, envs.SGLANG_PD_LOOP_TIMEOUT.get())
        more = 0.0 if manager.accounts.speaks else SILENT_S
        self._stalls = Stalls({phase: seconds + more for phase, seconds in limits.items()})
        none_yet = [*usual(role), (LOOP, Cause.RANK_OUT_OF_STEP), (LOOP, Cause.LOOP_WEDGED)]
        self._told: Counter[tuple[str, str]] = Counter({(phase, str(cause)): 0 for phase, cause in none_yet})
        self._last: tuple[float, str] | None = None
        # Deaths of threads counted so far, and when they last grew.
        self._deaths: dict[str, tuple[int, float]] = {}

    def run(self) -> None:
        """For a thread of its own; does not return."""
        while True:
            self.look()
            time.sleep(self._stalls.period_s)

    def counts(self) -> dict[tuple[str, str], int]:
        """Stalls that were told so far, by phase and cause; 0 for those that may come."""
        return dict(self._told)

    def entry(self, now: Moment) -> dict[str, Any]:
        """For ``/pd/status``. Any thread may ask."""
        told: dict[str, dict[str, int]] = {}
        for (phase, cause), number in sorted(self._told.copy().items()):
            if number:
                told.setdefault(phase, {})[cause] = number
        last = self._last
        return {
            "told": told,
            "open": [watchdog_report.stall_entry(stall, now) for stall in list(self._stalls.open.values())],
            "last_report": None if last is None else {"at": now.of(last[0]), "file": last[1]},
        }

    def look(self) -> list[Stall]:
        """Look once, and report what is new; returns that."""
        now = self._ledger.clock()
        pause = self._stalls.rested(now)
        if pause:
            text = "the watchdog did not run for %.1f s: this process was stopped, or a thread kept the interpreter"
            logger.warning(text, pause)
        self._note_deaths(now)
        loop_age_s = ready.loop_age_s()
        if self._stalls.idle and not self._is_anything_old(loop_age_s):
            return []
        live, lanes = list(self._ledger.live_rooms()), status_routes.lanes_of(self._manager, now)
        moved = self._moved(lanes, now)
        found = stills(live, moved)
        if loop_age_s is not None:
            found.append(Still(Group(LOOP), now - loop_age_s, now - loop_age_s))
        gather = _Gathering(self._manager, lanes, loop_age_s)
        news = self._stalls.look(now, found, moved, lambda still: self._diagnose(still, gather))
        if news and not self._is_told_by_another(gather):
            self._report(news, live, gather)
        return news

    def _is_anything_old(self, loop_age_s: float | None) -> bool:
        limits = self._stalls.limits
        if loop_age_s is not None and loop_age_s >= limits[LOOP]:
            return True
        ages = ((phase, self._ledger.oldest_age(phase)) for phase in limits if phase != LOOP)
        return any(age is not None and age >= limits[phase] for phase, age in ages)

    def _moved(self, lanes: Sequence[Lane], now: float) -> dict[Group, float]:
        moved = self._departures.read()
        for lane in lanes:
            if lane.arrived_seconds is not None:
                for address in lane.addresses:
                    group, at = Group(PrefillPhase.TRANSFERRING, address), now - lane.arrived_seconds
                    moved[group] = max(at, moved.get(group, at))
        return moved

    def _note_deaths(self, now: float) -> None:
        for name, state in self._threads().items():
            known, _ = self._deaths.get(name, (0, 0.0))
            if state.restarts > known:
                self._deaths[name] = state.restarts, now

    def _threads(self) -> dict[str, ThreadState]:
        threads = ready.threads_of_ours(self._manager)
        threads.pop(THREAD, None)
        return threads

    def _dead(self, within_s: float) -> dict[str, str]:
        """Threads that are down, or died so lately that this may be why nothing moved."""
        now, found = self._ledger.clock(), {}
        for name, state in self._threads().items():
            deaths, at = self._deaths.get(name, (0, float("-inf")))
            if not state.up:
                found[name] = f"down: {state.last_error}"
            elif now - at < within_s:
                found[name] = f"died and was started again, {deaths} times in all: {state.last_error}"
        return found

    def _diagnose(self, still: Still, gather: _Gathering) -> Diagnosis:
        limit_s, group = self._stalls.limits[still.group.phase], still.group
        evidence = Evidence(
            dead=self._dead(limit_s),
            own=gather.own,
            others=gather.others,
            lanes=gather.lanes,
            loop_limit_s=max(IDLE_LOOP_S, limit_s / 2),
        )
        return diagnose(self._ledger.role, group.phase, group.peer, still.rooms, limit_s, evidence)

    def _is_told_by_another(self, gather: _Gathering) -> bool:
        """A rank that speaks for all reports for all."""
        return not self._manager.accounts.speaks and any(map(watchdog_ranks.has_told, gather.announced))

    def _report(self, news: Sequence[Stall], live: Sequence[RoomRecord], gather: _Gathering) -> None:
        for stall in news:
            self._told[str(stall.group.phase), str(stall.diagnosis.cause)] += 1
        # First: what follows takes a moment, in which the threads go on.
        now = status_routes.moment()
        stacks = watchdog_stacks.read()
        native: str | None = None
        problem: str | None = "not asked for: it holds the process for a moment, and this cause does not need it"
        if any(stall.diagnosis.cause in watchdog_report.WANT_NATIVE for stall in news):
            native, problem = watchdog_stacks.native()
        routes = gather.routes(self._threads)
        scene = Scene(
            now=now,
            stalls=news,
            live=live,
            status=routes[STATUS](),
            peers=routes[PEERS](),
            own=gather.own,
            others=gather.others,
            lanes=gather.lanes,
            stacks=stacks,
            native=native,
            native_problem=problem,
        )
        try:
            file = str(
                watchdog_files.write(
                    watchdog_files.folder(), watchdog_report.body(scene), envs.SGLANG_PD_STALL_FILES.get()
                )
            )
        except OSError as error:
            file = f"none ({error})"
        self._last = scene.now.monotonic, file
        logger.error("%s", watchdog_report.block(scene, file))


class _Gathering:
    """What one look finds out, each at most once and only where it is asked for."""

    def __init__(self, manager: Any, lanes: Sequence[Lane], loop_age_s: float | None) -> None:
        self.lanes = lanes
        self._manager = manager
        self._loop_age_s = loop_age_s
        self._own: Rank | None = None
        self._announced: list[Announced] | None = None
        self._others: list[Rank] | None = None

    @property
    def announced(self) -> list[Announced]:
        if self._announced is None:
            self._announced = watchdog_ranks.others(os.getpid())
        return self._announced

    @property
    def own(self) -> Rank:
        if self._own is None:
            self._own = own_rank(self._loop_age_s)
        return self._own

    @property
    def others(self) -> list[Rank]:
        if self._others is None:
            self._others = watchdog_ranks.ask_all(self.announced)
        return self._others

    def routes(self, threads: Callable[[], dict[str, ThreadState]]) -> dict[str, Any]:
        ranks = get_parallel()
        place = {"tp_rank": ranks.tp_rank, "pp_rank": ranks.pp_rank, "dp_rank": ranks.dp_rank}
        return status_routes.routes(self._manager, rank_name(), place, threads, ready.loop_age_s)


def own_rank(loop_age_s: float | None) -> Rank:
    stack = watchdog_stacks.read_main()
    frame = str(stack.frames[0]) if stack.frames else None
    return Rank(rank_name(), loop_age_s, watchdog_stacks.place_of(stack.frames), frame)


def rank_name() -> str:
    ranks = get_parallel()
    return ready.rank_name(ranks.dp_rank, ranks.pp_rank, ranks.tp_rank)
