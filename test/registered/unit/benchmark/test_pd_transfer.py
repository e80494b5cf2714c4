"""The pure parts of the benchmark of PD transfer: cells and pages, medians, ratios, targets."""

import json
from pathlib import Path

import numpy as np
import pytest

from pd_transfer import geometry, report
from pd_transfer.geometry import Cell, buffers, stamps
from pd_transfer.measure import Sample, Size
from pd_transfer.running import Run


def test_a_cell_is_written_and_read_alike():
    for text in ("1/1", "64/1", "16/512", "16/512/adjacent"):
        assert str(Cell.parse(text)) == text


@pytest.mark.parametrize("text", ["", "64", "0/1", "1/0", "64/1/sideways", "-1/1", "64/1 1/1"])
def test_what_is_no_cell_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a cell"):
        Cell.parse(text)


@pytest.mark.parametrize("cell", [Cell(64, 1), Cell(16, 64), Cell(16, 64, "adjacent")], ids=str)
def test_slots_share_no_page(cell: Cell):
    for side in (0, 1):
        slots = cell.slots(side)
        assert slots.shape == (cell.in_flight, cell.pages)
        assert len(np.unique(slots)) == slots.size
        assert slots.min() >= 0
        assert slots.max() < cell.pool


def test_pages_are_adjacent_only_where_asked_for():
    def adjacent(cell: Cell) -> float:
        return float(np.mean(np.diff(cell.slots(0)) == 1))

    assert adjacent(Cell(16, 64, "adjacent")) == 1
    assert adjacent(Cell(16, 64)) < 0.01


def test_sides_differ_and_do_not_depend_on_the_process():
    cell = Cell(16, 64)
    assert (cell.slots(0) != cell.slots(1)).any()
    assert (cell.slots(0) == Cell.parse("16/64").slots(0)).all()


def test_no_two_pages_hold_the_same_bytes():
    pages = np.arange(8)
    found = np.concatenate([geometry.words(region, pages, 8) for region in range(geometry.REGIONS)])
    assert len(np.unique(found[:, 1])) == len(found)
    assert len(np.unique(found)) == found.size


def test_stamps_are_the_first_words_of_the_slots_pages():
    cell = Cell(2, 3)
    kv, words = buffers(cell.pool)
    slots = cell.slots(0)
    words[stamps(slots, cell.pool)[1]] = 7
    for buffer in kv:
        stamped = buffer.view(np.uint64)
        assert sorted(np.flatnonzero(stamped[:, 0])) == sorted(slots[1])
        assert not stamped[:, 1:].any()


def test_a_sample_is_as_long_as_asked_for_at_the_warm_ups_rate():
    asked = []

    def run(rooms: int) -> Run:
        asked.append(rooms)
        return Run(wall_s=rooms / 1000, cpu_s=0, rounds=0, seconds=[])

    assert Size(seconds=2.0).warm_up(run, 64) == pytest.approx(2000, abs=1)
    assert asked == [64, 64, 256, 1024]
    assert Size(seconds=0.0).warm_up(run, 64) == 128
    assert Size(seconds=2.0, rooms=5).warm_up(run, 64) == 5


def result(*rates: tuple[str, str, float], transport: str = "shm") -> report.Result:
    """Samples of (cell, side, rooms/s), each side's in the order of the repetitions."""
    found = report.Result({"cores": 2, "cpu": "test", "versions": {"sglang": "0"}}, {"repetitions": 1})
    for cell, side, rate in rates:
        done = sum((row["cell"], row["side"]) == (cell, side) for row in found.samples)
        sample = Sample(1, 1, rate, rate, 1, 1, 1, 1, 1, 0, 0)
        found.add(transport, Cell.parse(cell), side, done, sample)
    return found


def test_a_ratio_is_the_median_over_repetitions():
    slow_machine = [("1/1", "ours", 20.0), ("1/1", "upstream", 10.0)]
    fast_machine = [("1/1", "ours", 90.0), ("1/1", "upstream", 30.0)]
    found = result(*slow_machine, *fast_machine, *fast_machine)
    assert found.ratios()["shm", "1/1"]["rooms_per_s"] == 3
    assert found.medians()["shm", "1/1"]["ours"]["rooms_per_s"] == 90


@pytest.mark.parametrize(
    ("cell", "transport", "needed"),
    [("1/1", "shm", 1.0), ("64/1", "tcp", 4.0), ("256/1", "shm", 7.0), ("16/64", "shm", 3.0), ("16/64", "tcp", 1.0),
     ("16/512/adjacent", "shm", 2.0), ("16/512", "shm", 1.0)],
)  # fmt: skip
def test_targets(cell: str, transport: str, needed: float):
    met = result((cell, "ours", 10 * needed), (cell, "upstream", 10), transport=transport)
    assert report.missed(met) == []
    short = result((cell, "ours", 9.9 * needed), (cell, "upstream", 10), transport=transport)
    assert len(report.missed(short)) == 1


def test_an_idle_pair_must_not_take_more_than_upstreams():
    found = result()
    row = {"transport": "shm", "seconds": 1, "prefill": 0.5, "decode": 0.5}
    found.idle = [{**row, "side": "ours"}, {**row, "side": "upstream"}]
    assert report.missed(found) == []
    found.idle[0]["decode"] = 0.6
    assert len(report.missed(found)) == 1


def test_what_was_not_measured_is_not_judged():
    assert report.missed(result(("64/1", "ours", 1))) == []


def test_the_raw_result_can_be_read_back(tmp_path: Path):
    found = result(("64/1", "ours", 8), ("64/1", "upstream", 2))
    report.write(found, tmp_path / "new" / "result.json")
    read = report.Result(**json.loads((tmp_path / "new" / "result.json").read_text()))
    assert read.ratios() == found.ratios()
    assert "**4.00x**" in report.markdown(read)
