"""Sites for the fault matrix; see ``harness/faults/README.md``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.faults.document import markdown
from harness.faults.fault import Peers
from harness.faults.site import Site
from harness.faults.verdict import Record
from harness.managers import Nursery


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-report", metavar="FILE", type=Path, help="write the fault matrix as it came out, as Markdown"
    )


@pytest.fixture(scope="session")
def records(request: pytest.FixtureRequest) -> Iterator[list[Record]]:
    """What came of each cell; becomes the report."""
    found: list[Record] = []
    yield found
    report = request.config.getoption("--faults-report", default=None)
    if report is not None:
        report.write_text(markdown(found))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


class Sites:
    """One site for each number of peers; a new one after a cell that left something behind."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._sites: dict[Peers, Site] = {}

    def get(self, peers: Peers) -> Site:
        if peers not in self._sites:
            self._sites[peers] = Site(self._nursery, decodes=1 if peers is Peers.ONE else 2)
        return self._sites[peers]

    def discard(self, peers: Peers) -> None:
        if peers in self._sites:
            self._sites.pop(peers).close()


@pytest.fixture(scope="module")
def sites(nursery: Nursery) -> Iterator[Sites]:
    sites = Sites(nursery)
    yield sites
    for peers in Peers:
        sites.discard(peers)
