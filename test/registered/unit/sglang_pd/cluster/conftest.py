from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fake_cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SGLANG_PD_HOME", str(tmp_path))
    one = Cluster(tmp_path)
    yield one
    one.close()
