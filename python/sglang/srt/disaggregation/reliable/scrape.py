"""Serves the readings on upstream's ``/metrics``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang.srt.disaggregation.reliable import readings
from sglang.srt.disaggregation.reliable.families import PHASE_SECONDS_LE, Family

MOUNT = "/metrics"


class Collector:
    """What a ``prometheus_client`` registry asks at each scrape. ``where``: the folder of the readings."""

    def __init__(self, where: Path):
        self._where = where

    def collect(self) -> Iterator[Any]:
        found = readings.read_all(self._where)
        for family, samples in readings.merge(found, time.monotonic()).items():
            if samples:
                yield _exposed(family, samples)


def _exposed(family: Family, samples: dict[tuple[str, ...], Any]) -> Any:
    # Imported here: it looks once, then, whether there are several processes.
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.full_name, family.about, labels=family.labels)
        for labels, (*buckets, total) in samples.items():
            bounds = [*map(repr, PHASE_SECONDS_LE), "+Inf"]
            up_to = itertools.accumulate(buckets)
            histogram.add_metric(labels, list(zip(bounds, up_to, strict=True)), total)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    exposed = kind(family.full_name, family.about, labels=family.labels)
    for labels, value in samples.items():
        exposed.add_metric(labels, value)
    return exposed


def serve_readings(result: None, app: Any) -> None:
    """AFTER hook on ``add_prometheus_middleware``: its route serves a registry of its own making, that nobody else can
    reach; ours collects the same, and the readings.

    Raises ``RuntimeError`` where the route is not the last one.
    """
    from prometheus_client import CollectorRegistry, make_asgi_app, multiprocess

    route = app.routes[-1]
    if getattr(route, "path", None) != MOUNT:
        raise RuntimeError(f"the last route is {route!r}, not upstream's {MOUNT}")
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    registry.register(Collector(readings.folder()))
    route.app = _with_colons(make_asgi_app(registry=registry))


def _with_colons(app: Any) -> Any:
    """``app`` in the plain text format alone.

    In OpenMetrics, which Prometheus 2 asks for, prometheus_client 0.26 writes the colon of a sample's name as an
    underscore, and no query of ``sglang:...`` finds it.
    """

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        headers = [header for header in scope["headers"] if header[0] != b"accept"]
        await app({**scope, "headers": headers}, receive, send)

    return serve
