import json
import os
import shutil

import pytest

from sglang_pd.demo import manifest
from sglang_pd.demo.manifest import Identity

IDENTITY = Identity("m", "digest", 1)


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "weights").write_bytes(b"0123456789")
    manifest.write(directory, IDENTITY)
    return directory


def test_a_complete_model_is_recognised(model):
    assert manifest.is_complete(model, IDENTITY)


def test_a_copy_with_other_times_is_recognised(model, tmp_path):
    copy = shutil.copytree(model, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(copy / "weights", (1, 1))
    assert manifest.is_complete(copy, IDENTITY)


@pytest.mark.parametrize("other", [Identity("x", "digest", 1), Identity("m", "x", 1), Identity("m", "digest", 2)])
def test_another_model_source_or_version_is_not_this_one(model, other):
    assert not manifest.is_complete(model, other)


def test_a_changed_byte_is_noticed(model):
    (model / "weights").write_bytes(b"0123456780")
    assert not manifest.is_complete(model, IDENTITY)


def test_a_cut_file_is_noticed_even_with_its_old_time(model):
    stat = (model / "weights").stat()
    (model / "weights").write_bytes(b"01234")
    os.utime(model / "weights", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not manifest.is_complete(model, IDENTITY)


def test_a_missing_file_is_noticed(model):
    (model / "config.json").unlink()
    assert not manifest.is_complete(model, IDENTITY)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"identity": {}, "files": {}}', '{"identity": 1, "files": []}'])
def test_a_manifest_that_cannot_be_understood_is_none(model, text):
    (model / manifest.NAME).write_text(text)
    assert manifest.read(model) is None
    assert not manifest.is_complete(model, IDENTITY)


def test_what_is_written_is_what_is_read(model):
    found = manifest.read(model)
    assert found is not None
    assert found.identity == IDENTITY
    assert set(found.files) == {"config.json", "weights"}
    assert json.loads((model / manifest.NAME).read_text())["files"]["weights"]["size"] == 10
