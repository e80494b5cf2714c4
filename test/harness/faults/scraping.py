"""A manager's metrics as a scrape would show them: through the reading on disk and the text that is served."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sglang.srt.disaggregation.reliable import families, readings
from sglang.srt.disaggregation.reliable.metrics import Metrics
from sglang.srt.disaggregation.reliable.scrape import Collector

TOTALS = {"started": families.STARTED, "ended": families.ENDED, "live": families.LIVE}


class Scraper:
    """``manager`` is a ``ReliableKVManager``."""

    def __init__(self, manager: Any) -> None:
        self._metrics = Metrics(manager)
        self._folder = tempfile.TemporaryDirectory(prefix="readings-")
        self._registry = CollectorRegistry()
        self._registry.register(Collector(Path(self._folder.name)))

    def scrape(self) -> str:
        readings.write(Path(self._folder.name), self._metrics.read())
        return generate_latest(self._registry).decode()


def totals(text: str) -> dict[str, float]:
    """Rooms started, ended and live, summed over their labels."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        name: sum(sample.value for sample in samples if sample.name == family.full_name)
        for name, family in TOTALS.items()
    }
