"""Which metrics, labels and label values a text uses, and which of them do not exist; no server, no Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from sglang.srt.disaggregation.reliable.families import FAMILIES, PREFIX
from sglang.srt.disaggregation.reliable.phases import PHASES, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

# ``pd_rooms_live`` in a sentence is meant like ``sglang:pd_rooms_live`` in a query.
_NAMES = re.compile(r"(?<![\w:])(sglang:\w+|pd:\w+:\w+|pd:trusted_instance)")
_SELECTORS = re.compile(r"((?:sglang|pd):[\w:]+)\{([^{}]*)\}")
_MATCHERS = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
# From the scrape configuration, and of a histogram.
_ADDED = {"instance", "job", "pd", "le"}
_VALUES: dict[str, set[str]] = {
    "role": set(map(str, Role)),
    "phase": {str(phase) for phases in PHASES.values() for phase in phases},
    "outcome": set(map(str, Outcome)),
    "reason": set(map(str, Reason)),
}


def ours() -> set[str]:
    """Every name that a scrape has of ours."""
    names = set()
    for family in FAMILIES:
        endings = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        names |= {family.full_name + ending for ending in endings}
    return names


@cache
def upstreams() -> set[str]:
    """Every name that upstream's collectors declare."""
    spec = find_spec("sglang.srt.observability")
    assert spec
    assert spec.submodule_search_locations
    source = "".join(path.read_text() for path in Path(next(iter(spec.submodule_search_locations))).glob("*.py"))
    return set(re.findall(r'"(sglang:\w+)"', source))


def names(text: str) -> set[str]:
    """The metrics and recorded series that are named."""
    return set(_NAMES.findall(text))


def problems(text: str, recorded: Iterable[str] = ()) -> list[str]:
    """What is named and does not exist; empty where all is well. ``recorded``: series that rules record."""
    known = ours() | upstreams() | set(recorded)
    # A histogram is a family in a sentence.
    known |= {family.full_name for family in FAMILIES}
    found = [f"no such metric: {name}" for name in sorted(names(text)) if name not in known]
    return found + sorted(set(_label_problems(text)))


def _label_problems(text: str) -> Iterator[str]:
    of = {name: set(family.labels) for family in FAMILIES for name in ours() if name.startswith(family.full_name)}
    for name, inside in _SELECTORS.findall(text):
        for label, _, value in _MATCHERS.findall(inside):
            if name.startswith(f"{PREFIX}pd_") and label not in of.get(name, set()) | _ADDED:
                yield f"{name} has no label {label}"
            yield from (
                f"{name}: no {label} matches {part!r}"
                for part in _alternatives(value)
                if label in _VALUES and not any(re.fullmatch(part, known) for known in _VALUES[label])
            )


def _alternatives(value: str) -> list[str]:
    """``a_(b|c)|d`` as ``a_b``, ``a_c``, ``d``; one group a branch at most."""
    parts = []
    for branch in re.findall(r"(?:[^|()]|\([^()]*\))+", value):
        group = re.search(r"\(([^()]*)\)", branch)
        parts += [branch.replace(group[0], one) for one in group[1].split("|")] if group else [branch]
    return parts
