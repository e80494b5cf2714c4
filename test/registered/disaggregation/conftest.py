"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.servers import Preloaded, undivided
from harness.workload import FLAGS, PROMPTS, generate_all


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def tiny_model(home: Path) -> Path:
    from sglang_pd.demo.tiny import build_tiny

    return build_tiny(home / "tiny")


@pytest.fixture(scope="session")
def expected(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Token ids of one undivided server for every prompt. It is gone when a pair starts: two cores serve one."""
    log = tmp_path_factory.mktemp("undivided") / "server.log"
    with undivided(tiny_model, log, *FLAGS) as url:
        return [answer["output_ids"] for answer in generate_all(url, PROMPTS, at_a_time=16)]


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """Starts servers in a second, from one process that has imported theirs."""
    with Preloaded(tmp_path_factory.mktemp("preloaded")) as one:
        yield one
