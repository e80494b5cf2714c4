"""The folder of the watchdog's reports."""

import json
import stat

import pytest

from sglang.srt.disaggregation.reliable import watchdog_files

AT = 1_700_000_000.0


def report(at=AT, role="decode", rank="tp0", pid=71):
    return {"at": at, "role": role, "rank": rank, "pid": pid, "text": "stuck"}


def test_a_report_is_a_file_that_its_owner_alone_may_read(tmp_path):
    where = tmp_path / "a" / "stalls"
    path = watchdog_files.write(where, report(), keep=3)
    assert path.parent == where
    assert path.name.startswith("stall-20231114T221320Z-decode-tp0-71-")
    assert json.loads(path.read_text()) == report()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(where.stat().st_mode) == 0o700


def test_the_last_ones_are_kept_in_order_and_nothing_else_is_touched(tmp_path):
    (tmp_path / "stall-notes.json").write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    written = [watchdog_files.write(tmp_path, report(at=AT + second), keep=3) for second in range(5)]
    assert watchdog_files.kept(tmp_path) == written[2:]
    assert {path.name for path in tmp_path.iterdir()} == {
        "stall-notes.json",
        "other.json",
        *(path.name for path in written[2:]),
    }


def test_reports_of_the_same_second_are_files_of_their_own(tmp_path):
    assert len({watchdog_files.write(tmp_path, report(), keep=9) for _ in range(3)}) == 3


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        watchdog_files.write(tmp_path / "file" / "stalls", report(), keep=3)


def test_the_folder_is_the_users_or_below_our_own(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_PD_HOME", str(tmp_path))
    monkeypatch.delenv("SGLANG_PD_STALL_DIR", raising=False)
    assert watchdog_files.folder() == tmp_path / "stalls"
    monkeypatch.setenv("SGLANG_PD_STALL_DIR", "/var/stalls")
    assert str(watchdog_files.folder()) == "/var/stalls"
