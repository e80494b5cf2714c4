"""Start the processes of a plan, watch them, stop all of them: the one process that owns a cluster."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from sglang_pd import ready
from sglang_pd.cluster import phases, probe
from sglang_pd.cluster.launcher import Launcher
from sglang_pd.cluster.liveness import ANSWER_S, Liveness
from sglang_pd.cluster.logs import NewLines
from sglang_pd.cluster.phases import ENDED, Phase
from sglang_pd.cluster.plan import Plan, ProcessSpec
from sglang_pd.cluster.procfs import Identity, identify
from sglang_pd.cluster.restart import kill_trees
from sglang_pd.cluster.state import ClusterDir, ClusterState, Failure, ProcessState
from sglang_pd.cluster.stopping import ORPHAN_WAIT_S, stop_trees

# How soon an exit or a new log line is seen while starting, and later. Answers and signals are seen at once.
STARTING_TICK_S = 0.1
READY_TICK_S = 0.5
PROBE_WAIT_S = 0.2

Event = Callable[[], None]


class Supervisor:
    """Runs one plan. Single-threaded but for one thread per process that asks it over HTTP until it is ready; what
    those learn arrives in one queue of small functions, as do signals, and is applied by the main thread."""

    def __init__(self, folder: ClusterDir, plan: Plan, launcher: Launcher, own: Identity):
        self._folder = folder
        self._plan = plan
        self._launcher = launcher
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stop_signals = 0
        self._quiet = threading.Event()
        self._probes: list[threading.Thread] = []
        self._changed = True
        self._logs = {spec.name: NewLines(folder.log(spec.name)) for spec in plan.processes}
        ports = {one.name: one.port for one in plan.servers}
        self._liveness = (
            Liveness(plan.hung_after_s, lambda name: probe.answers(ports[name], ready.PATH, ANSWER_S))
            if plan.hung_after_s is not None
            else None
        )
        self.state = ClusterState(
            name=plan.name,
            model=plan.model,
            served_model_name=plan.served_model_name,
            supervisor=own,
            started_at=time.time(),
            processes=[
                ProcessState(one.name, one.role, one.port, one.url, one.bootstrap_port, str(folder.log(one.name)))
                for one in plan.processes
            ],
            ports=list(plan.ports),
        )

    def run(self) -> int:
        """Run until a signal (returns 0) or a failure (returns 1). Whatever happens, everything has been stopped."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        failure: Failure | None = None
        try:
            self._save()
            failure = self._launch() or self._watch()
        except BaseException as error:
            failure = Failure("supervisor", f"{type(error).__name__}: {error}", str(self._folder.supervisor_log))
            raise
        finally:
            failure = self._stop(failure)
        return 1 if failure else 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(self._ask_to_stop)

    def _ask_to_stop(self) -> None:
        self._stop_signals += 1

    def _launch(self) -> Failure | None:
        self.state.preload = self._launcher.preload
        for process in self.state.processes:
            process.launched_at = self.state.started_at
            if process.role != "gateway":
                self._reach(process, Phase.IMPORTING)
        return self._start(list(zip(self._plan.processes, self.state.processes, strict=True)))

    def _start(self, waiting: list[tuple[ProcessSpec, ProcessState]]) -> Failure | None:
        """Start each before the next probe thread exists: a fork beside threads is not safe."""
        while waiting and not self._stop_signals:
            self._save()
            failure = self._start_what_can(waiting) or self._look_for_ends(start_again=False)
            if failure:
                return failure
            waiting = [(spec, process) for spec, process in waiting if process.identity is None]
            if waiting:
                self._wait(STARTING_TICK_S)
        self._quiet.clear()
        self._probes = []
        for spec, process in zip(self._plan.processes, self.state.processes, strict=True):
            if process.ready_s is None:
                ask = self._probe_gateway if spec.role == "gateway" else self._probe_server
                thread = threading.Thread(target=ask, args=(spec, process), name=f"probe-{spec.name}", daemon=True)
                thread.start()
                self._probes.append(thread)
        return None

    def _start_again(self, ended: list[ProcessState]) -> Failure | None:
        """Start what ended as it was asked to, on the same ports; it goes on in its log."""
        self._quiet.set()
        for one in self._probes:
            one.join()
        # What those have said was about processes that are gone.
        self._wait(0.0)
        stop_trees([one.identity for one in ended if one.identity], ORPHAN_WAIT_S, reap=self._reap)
        specs = {one.name: one for one in self._plan.processes}
        for process in ended:
            self._folder.restart_done(process.name)
            self._logs[process.name].skip()
            process.identity, process.ready_s, process.launched_at = None, None, time.time()
            process.phase, process.detail = Phase.STARTING, ""
            process.restarts += 1
        self._changed = True
        return self._start([(specs[one.name], one) for one in ended])

    def _start_what_can(self, waiting: list[tuple[ProcessSpec, ProcessState]]) -> Failure | None:
        for spec, process in waiting:
            log = self._folder.log(spec.name)
            try:
                if not self._launcher.can_start(list(spec.argv)):
                    continue
                pid = self._launcher.start(spec.name, list(spec.argv), log, dict(spec.env))
            except OSError as error:
                process.phase = Phase.FAILED
                return Failure(spec.name, f"could not be started: {error}", str(log))
            process.identity = identify(pid)
            if process.identity is None:
                return self._failed(process, "ended at once")
            self._changed = True
        return None

    def _watch(self) -> Failure | None:
        """Until a stop is asked for (returns None) or something fails."""
        deadline = time.monotonic() + self._plan.startup_timeout_s
        while not self._stop_signals:
            self._read_logs()
            failure = self._look_for_ends()
            if failure:
                return failure
            up = self.state.phase is Phase.READY
            if not up and time.monotonic() > deadline:
                return self._too_late()
            self._end_hung()
            self._save()
            self._wait(READY_TICK_S if up else STARTING_TICK_S)
        return None

    def _end_hung(self) -> None:
        """Kill what stands still; that it ended is seen as any wanted end is."""
        if self._liveness is None:
            return
        up = {one.name: one for one in self.state.processes if one.role != "gateway" and one.phase is Phase.READY}
        for name in self._liveness.hung(up):
            identity = up[name].identity
            if identity is not None:
                at = time.strftime("%Y-%m-%d %H:%M:%S")
                print(f"[{at}] {name} answers nothing for {self._plan.hung_after_s:g} s: killed", flush=True)
                self._folder.want_restart(name)
                kill_trees([identity])

    def _wait(self, seconds: float) -> None:
        try:
            self._events.get(timeout=seconds)()
            while True:
                self._events.get_nowait()()
        except queue.Empty:
            return

    def _read_logs(self) -> None:
        for process in self.state.processes:
            if process.role != "gateway" and process.ready_s is None:
                for line in self._logs[process.name].read():
                    self._reach(process, phases.after_line(process.phase, line))

    def _look_for_ends(self, start_again: bool = True) -> Failure | None:
        wanted: list[ProcessState] = []
        for process in self.state.processes:
            how = self._launcher.ended(process.identity.pid) if process.identity else None
            if how is None:
                continue
            if not self._folder.restart_wanted(process.name):
                return self._failed(process, f"ended by itself: {how}")
            wanted.append(process)
        return self._start_again(wanted) if wanted and start_again else None

    def _failed(self, process: ProcessState, reason: str) -> Failure:
        process.phase, process.ended_at = Phase.FAILED, time.time()
        return Failure(process.name, reason, process.log)

    def _too_late(self) -> Failure:
        late = [one for one in self.state.processes if one.phase is not Phase.READY]
        # The gateway only waits for the servers: where one of them is late too, that one is the cause.
        cause = late[0]
        reason = f"not ready after {self._plan.startup_timeout_s:g} s (it is {cause.phase.value})"
        return Failure(cause.name, reason, cause.log)

    def _reach(self, process: ProcessState, phase: Phase, detail: str = "") -> None:
        if phase is process.phase and detail == process.detail:
            return
        process.phase, process.detail, self._changed = phase, detail, True
        if phase is Phase.READY and process.launched_at is not None:
            process.ready_s = time.time() - process.launched_at
        if self.state.ready_s is None and all(one.phase is Phase.READY for one in self.state.processes):
            self.state.phase = Phase.READY
            self.state.ready_s = time.time() - self.state.started_at

    def _probe_server(self, spec: ProcessSpec, process: ProcessState) -> None:
        while not self._quiet.is_set():
            status = probe.health(spec.port)
            self._events.put(partial(self._on_health, process, status))
            if status == 200:
                return
            self._quiet.wait(PROBE_WAIT_S)

    def _on_health(self, process: ProcessState, status: int | None) -> None:
        self._reach(process, phases.after_health(process.phase, status))

    def _probe_gateway(self, spec: ProcessSpec, process: ProcessState) -> None:
        wanted = [one.url for one in self._plan.servers]
        while not self._quiet.is_set():
            answer = probe.workers(spec.port)
            if answer is not None:
                known = len(phases.registered(answer, wanted))
                self._events.put(partial(self._on_workers, process, known, len(wanted)))
                if known == len(wanted):
                    return
            self._quiet.wait(PROBE_WAIT_S)

    def _on_workers(self, process: ProcessState, known: int, wanted: int) -> None:
        self._reach(process, phases.after_workers(process.phase, known, wanted), f"{known}/{wanted} workers")

    def _stop(self, failure: Failure | None) -> Failure | None:
        """Stop every tree; returns the failure, or a new one where something could not be stopped."""
        self._quiet.set()
        self.state.failure = failure
        self.state.phase = Phase.STOPPING
        for process in self.state.processes:
            if process.phase not in ENDED:
                process.phase = Phase.STOPPING
        self._folder.save(self.state)
        asked = self._stop_signals
        roots = [one.identity for one in self.state.processes if one.identity]
        result = stop_trees(roots, self._plan.grace_s, lambda: self._stop_signals > asked, self._reap)
        self._launcher.close()
        if result.left and failure is None:
            pids = ", ".join(f"{one.name} (pid {one.pid})" for one in result.left)
            failure = Failure("supervisor", f"could not be killed: {pids}", str(self._folder.supervisor_log))
        for process in self.state.processes:
            if process.phase not in ENDED:
                process.phase, process.ended_at = Phase.STOPPED, time.time()
        self.state.failure = failure
        self.state.phase = Phase.FAILED if failure else Phase.STOPPED
        self._folder.save(self.state)
        return failure

    def _reap(self) -> None:
        self._wait(0.0)
        for process in self.state.processes:
            if process.identity:
                self._launcher.ended(process.identity.pid)

    def _save(self) -> None:
        if self._changed:
            self._folder.save(self.state)
            self._changed = False
