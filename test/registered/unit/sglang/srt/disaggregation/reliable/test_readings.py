import json
import os
import subprocess
import sys

import pytest

from sglang.srt.disaggregation.reliable import families, readings
from sglang.srt.disaggregation.reliable.readings import Reading


def reading(role="decode", at=100.0, **samples) -> Reading:
    """``samples`` by the family's name without ``pd_``; the other families are empty."""
    empty = {family.name: [] for family in families.FAMILIES if family is not families.READING_AGE}
    return Reading(role, at, {**empty, **{f"pd_{name}": value for name, value in samples.items()}})


def test_what_was_written_is_read_back(tmp_path):
    one = reading(rooms_started_total=[(("decode",), 3)], phase_seconds=[(("decode", "waiting"), [1, 0, 2.5])])
    readings.write(tmp_path, one)
    assert readings.read_all(tmp_path) == [one]


def test_a_process_has_one_reading_and_it_is_the_last(tmp_path):
    for started in (1, 2):
        readings.write(tmp_path, reading(rooms_started_total=[(("decode",), started)]))
    (found,) = readings.read_all(tmp_path)
    assert found.samples["pd_rooms_started_total"] == [(("decode",), 2)]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_process_that_ended_counts_no_more(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    readings.write(tmp_path, reading())
    (tmp_path / f"pd-decode-{os.getpid()}.json").rename(tmp_path / f"pd-decode-{ended.pid}.json")
    assert readings.read_all(tmp_path) == []


def test_other_files_in_the_folder_are_not_ours(tmp_path):
    (tmp_path / "counter_1.db").write_bytes(b"\0")
    (tmp_path / "pd-decode-1.tmp").write_text("{")
    assert readings.read_all(tmp_path) == []


def test_data_parallel_ranks_are_added_up():
    one = reading(
        rooms_started_total=[(("decode",), 3)],
        rooms_live=[(("decode", "waiting"), 1)],
        oldest_room_age_seconds=[(("decode", "waiting"), 4.0)],
        control_thread_up=[(("decode-control",), 1)],
        phase_seconds=[(("decode", "waiting"), [1, 0, 2.0])],
    )
    other = reading(
        rooms_started_total=[(("decode",), 5)],
        rooms_live=[(("decode", "waiting"), 2)],
        oldest_room_age_seconds=[(("decode", "waiting"), 9.0)],
        control_thread_up=[(("decode-control",), 0)],
        phase_seconds=[(("decode", "waiting"), [0, 3, 4.0])],
    )
    merged = readings.merge([one, other], now=100.0)
    assert merged[families.STARTED] == {("decode",): 8}
    assert merged[families.LIVE] == {("decode", "waiting"): 3}
    assert merged[families.OLDEST] == {("decode", "waiting"): 9.0}
    assert merged[families.THREAD_UP] == {("decode-control",): 0}
    assert merged[families.PHASE_SECONDS] == {("decode", "waiting"): [1, 3, 6.0]}


def test_ages_grow_while_nobody_writes():
    stopped = reading(
        at=100.0,
        rooms_live=[(("decode", "waiting"), 1), (("decode", "resolving"), 0)],
        oldest_room_age_seconds=[(("decode", "waiting"), 4.0), (("decode", "resolving"), 0.0)],
        pages_quarantined=[((), 5)],
        quarantine_oldest_age_seconds=[((), 1.0)],
    )
    merged = readings.merge([stopped], now=130.0)
    assert merged[families.OLDEST] == {("decode", "waiting"): 34.0, ("decode", "resolving"): 0.0}
    assert merged[families.QUARANTINE_AGE] == {(): 31.0}
    assert merged[families.READING_AGE] == {("decode",): 30.0}


def test_metrics_that_are_off_have_no_folder(monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with pytest.raises(RuntimeError, match="PROMETHEUS_MULTIPROC_DIR"):
        readings.folder()


def test_a_reading_is_plain_json(tmp_path):
    """So that status and doctor may look at it, too."""
    readings.write(tmp_path, reading(rooms_started_total=[(("decode",), 3)]))
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["samples"]["pd_rooms_started_total"] == [[["decode"], 3]]
