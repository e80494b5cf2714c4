"""Fixtures of the end-to-end tests."""

from pathlib import Path

import pytest


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
