"""Upstream's real classes with our hooks live; see ``harness.lab``."""

from collections.abc import Iterator

import pytest

from harness.lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with Lab() as one:
        yield one
