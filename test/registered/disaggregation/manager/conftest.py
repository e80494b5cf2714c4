"""Pairs of real managers; see ``harness.managers``."""

from collections.abc import Iterator

import pytest

from harness.managers import UPSTREAM, Nursery, Pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--upstream", action="store_true", help="upstream's classes on both sides: see what they do")


@pytest.fixture(scope="session")
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    with Nursery(UPSTREAM if request.config.getoption("--upstream", default=False) else None) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def pair(nursery: Nursery) -> Iterator[Pair]:
    pair = Pair(nursery)
    yield pair
    pair.close()
