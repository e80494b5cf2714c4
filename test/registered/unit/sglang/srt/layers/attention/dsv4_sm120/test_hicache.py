from pathlib import Path

import pytest

from harness.lab import Lab
from sglang.srt.layers.attention.dsv4_sm120.hicache import NAMED_STORAGE, storage_problem


def test_pages_move_whole(lab: Lab):
    assert lab.call("harness.dsv4.pools:regions", on=True) == [("deepseek_v4_c4_indexer", 16384, True)]


@pytest.mark.parametrize(("writer", "reader"), [(False, True), (True, False)])
def test_a_page_persisted_in_the_other_layout_is_not_found(lab: Lab, tmp_path: Path, writer: bool, reader: bool):
    size = {False: 64 * 132, True: 16384}
    assert lab.call("harness.dsv4.cache:persist", str(tmp_path), size[writer], on=writer)
    assert lab.call("harness.dsv4.cache:find", str(tmp_path), size[writer], on=writer)
    assert not lab.call("harness.dsv4.cache:find", str(tmp_path), size[reader], on=reader)


@pytest.mark.parametrize("backend", [None, *NAMED_STORAGE])
def test_storage_that_names_the_model_is_allowed(backend: str | None):
    assert storage_problem(backend) is None


def test_other_storage_is_refused_by_name():
    assert "--hicache-storage-backend hf3fs" in str(storage_problem("hf3fs"))
