"""The ledger's numbers as Prometheus metrics on upstream's ``/metrics``.

Upstream serves metrics from another process, which reads what each process writes to files. So the numbers are copied
from the ledger to ``prometheus_client`` at a fixed pace, all of them from one consistent reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.room import EndedRoom

PERIOD_S = 1.0
PHASE_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Creates the metrics and copies the numbers of one manager into them.

    To be made after upstream has set ``PROMETHEUS_MULTIPROC_DIR``: ``prometheus_client`` reads it when it is imported.
    ``registry``: a ``CollectorRegistry``, the default one if None.
    """

    def __init__(self, ledger: Ledger, messages: MessageCounters, control: Supervisor, registry: Any = None):
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        target = REGISTRY if registry is None else registry

        def gauge(name: str, about: str, labels: list[str]) -> Any:
            return Gauge(f"sglang:{name}", about, labels, multiprocess_mode="mostrecent", registry=target)

        def counter(name: str, about: str, labels: list[str]) -> Any:
            return Counter(f"sglang:{name}", about, labels, registry=target)

        self._ledger, self._messages, self._control = ledger, messages, control
        self._started = counter("pd_rooms_started_total", "Rooms (requests handed over) that began.", ["role"])
        self._ended = counter(
            "pd_rooms_ended_total",
            "Rooms that ended: each once, with the phase in which its end was decided and the reason.",
            ["role", "outcome", "phase", "reason"],
        )
        self._live = gauge("pd_rooms_live", "Rooms that have not ended, by phase.", ["role", "phase"])
        self._oldest = gauge(
            "pd_oldest_room_age_seconds", "How long the first room of a phase has been in it.", ["role", "phase"]
        )
        self._bytes = counter("pd_transfer_bytes_total", "KV bytes handed to the transfer.", ["role"])
        self._control_messages = counter(
            "pd_control_messages_total", "Control messages received, by what became of them.", ["kind", "result"]
        )
        self._thread_up = gauge("pd_control_thread_up", "1 while the control thread runs, else 0.", ["thread"])
        self._phase_seconds = Histogram(
            "sglang:pd_phase_seconds",
            "Seconds a room spent in a phase.",
            ["role", "phase"],
            buckets=PHASE_SECONDS,
            registry=target,
        )
        self._copied: dict[tuple[int, tuple[str, ...]], float] = {}
        ledger.on_end.add(self._observe)

    def copy(self) -> None:
        """Bring every metric up to the ledger's present numbers."""
        counts = self._ledger.counts()
        role = str(counts.role)
        self._raise_to(self._started, (role,), counts.started)
        self._raise_to(self._bytes, (role,), counts.bytes)
        for (outcome, phase, reason), number in counts.ended.items():
            self._raise_to(self._ended, (role, outcome, phase, reason), number)
        for phase, number in counts.live.items():
            self._live.labels(role, phase).set(number)
            self._oldest.labels(role, phase).set(counts.oldest_seconds[phase])
        for (kind, result), number in self._messages.snapshot().items():
            self._raise_to(self._control_messages, (kind, result), number)
        for thread, state in self._control.states().items():
            self._thread_up.labels(thread).set(int(state.up))

    def _raise_to(self, metric: Any, labels: tuple[str, ...], total: float) -> None:
        key = (id(metric), tuple(map(str, labels)))
        metric.labels(*labels).inc(total - self._copied.get(key, 0))
        self._copied[key] = total

    def _observe(self, record: EndedRoom) -> None:
        seconds: Mapping[Any, float] = record.phase_seconds()
        for phase, spent in seconds.items():
            self._phase_seconds.labels(str(record.role), str(phase)).observe(spent)


def publish(copy: Callable[[], None], stop: threading.Event, period_s: float = PERIOD_S) -> None:
    """The body of the thread that copies: until ``stop``, every ``period_s`` seconds."""
    while not stop.wait(period_s):
        copy()
