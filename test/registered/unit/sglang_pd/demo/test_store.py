import signal
import subprocess
import sys
import time

import pytest

from sglang_pd.demo import manifest, store
from sglang_pd.demo.manifest import Identity
from sglang_pd.errors import UserError

IDENTITY = Identity("m", "digest", 1)


class Counting:
    """A writer that counts its calls."""

    def __init__(self, text="good"):
        self.text = text
        self.calls = 0

    def __call__(self, model, scratch):
        self.calls += 1
        (scratch / "download").write_text("big")
        (model / "weights").write_text(self.text)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_builds_once_and_leaves_nothing_else(tmp_path):
    write = Counting()
    target = tmp_path / "deep" / "model"
    assert store.ensure(target, IDENTITY, write) == target
    assert store.ensure(target, IDENTITY, write) == target
    assert write.calls == 1
    assert names(target.parent) == ["model"]
    assert names(target) == sorted([manifest.NAME, "weights"])


def test_the_default_directory_is_below_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_PD_HOME", str(tmp_path))
    assert store.default_directory("m") == tmp_path / "models" / "m"


def test_a_failing_build_leaves_nothing_and_keeps_what_was_there(tmp_path):
    target = tmp_path / "model"
    store.ensure(target, IDENTITY, Counting("old"))

    def fail(model, scratch):
        (model / "weights").write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        store.ensure(target, Identity("m", "digest", 2), fail)
    assert names(tmp_path) == ["model"]
    assert (target / "weights").read_text() == "old"


@pytest.mark.parametrize("damage", ["weights", manifest.NAME])
def test_a_damaged_model_is_rebuilt(tmp_path, damage):
    write = Counting()
    target = store.ensure(tmp_path / "model", IDENTITY, write)
    (target / damage).write_text("bad!")
    store.ensure(target, IDENTITY, write)
    assert write.calls == 2
    assert (target / "weights").read_text() == "good"
    assert manifest.is_complete(target, IDENTITY)
    assert names(tmp_path) == ["model"]


def test_a_model_of_an_older_builder_is_rebuilt(tmp_path):
    target = store.ensure(tmp_path / "model", IDENTITY, Counting("old"))
    store.ensure(target, Identity("m", "digest", 2), Counting("new"))
    assert (target / "weights").read_text() == "new"


def test_a_rebuild_does_not_lose_a_users_file(tmp_path):
    target = store.ensure(tmp_path / "model", IDENTITY, Counting())
    (target / "weights").write_text("bad!")
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt"):
        store.ensure(target, IDENTITY, Counting())
    assert (target / "notes.txt").read_text() == "mine"
    assert names(tmp_path) == ["model"]


def test_a_foreign_folder_is_refused_and_untouched(tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    write = Counting()
    with pytest.raises(UserError, match=str(target)):
        store.ensure(target, IDENTITY, write)
    assert write.calls == 0
    assert names(target) == ["thesis.txt"]
    assert names(tmp_path) == ["mine"]


def test_a_file_is_refused(tmp_path):
    target = tmp_path / "mine"
    target.write_text("mine")
    with pytest.raises(UserError, match="not a folder"):
        store.ensure(target, IDENTITY, Counting())
    assert target.read_text() == "mine"


def test_another_model_of_ours_is_refused(tmp_path):
    target = store.ensure(tmp_path / "model", IDENTITY, Counting("first"))
    with pytest.raises(UserError, match="holds m, not other"):
        store.ensure(target, Identity("other", "digest", 1), Counting("second"))
    assert (target / "weights").read_text() == "first"


def test_an_empty_folder_is_filled(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    store.ensure(target, IDENTITY, Counting())
    assert manifest.is_complete(target, IDENTITY)


def test_a_link_is_followed(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert store.ensure(link, IDENTITY, Counting()) == real
    assert link.is_symlink()
    assert manifest.is_complete(link, IDENTITY)


def test_a_place_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot build m at") as caught:
        store.ensure(tmp_path / "file" / "model", IDENTITY, Counting())
    assert caught.value.exit_code == 1


BUILDER = """
import sys, time
from pathlib import Path
from sglang_pd.demo import store
from sglang_pd.demo.manifest import Identity

target, begun, go = map(Path, sys.argv[1:])

def write(model, scratch):
    with begun.open("a") as log:
        log.write("begun\\n")
    (model / "weights").write_text("good")
    time.sleep(float(go.read_text()))

while not go.exists():
    time.sleep(0.01)
store.ensure(target, Identity("m", "digest", 1), write)
"""


def start_builder(tmp_path):
    arguments = [str(tmp_path / "models" / "model"), str(tmp_path / "begun"), str(tmp_path / "go")]
    return subprocess.Popen([sys.executable, "-c", BUILDER, *arguments])


def test_builders_at_once_build_once(tmp_path):
    builders = [start_builder(tmp_path) for _ in range(4)]
    time.sleep(0.5)
    (tmp_path / "new").write_text("0.5")
    (tmp_path / "new").rename(tmp_path / "go")
    assert [builder.wait(timeout=60) for builder in builders] == [0, 0, 0, 0]
    assert (tmp_path / "begun").read_text() == "begun\n"
    assert names(tmp_path / "models") == ["model"]
    assert manifest.is_complete(tmp_path / "models" / "model", IDENTITY)


def test_what_a_killed_builder_left_is_no_obstacle(tmp_path):
    (tmp_path / "go").write_text("60")
    builder = start_builder(tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    target = tmp_path / "models" / "model"
    assert not target.exists()
    assert names(target.parent), "a killed builder leaves its staging folder; else this test proves nothing"
    store.ensure(target, IDENTITY, Counting())
    assert manifest.is_complete(target, IDENTITY)
    assert names(target.parent) == ["model"]
