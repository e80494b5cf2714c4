"""Costs from times, tables that are checked when they are read, and the command without a GPU."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sgl_kernel_sm120.sparse_mla import calibration
from sgl_kernel_sm120.sparse_mla.calibration import Calibration, CalibrationError
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch
from sgl_kernel_sm120.sparse_mla.split import Costs, Machine, Work, makespan
from sgl_kernel_sm120.tune.__main__ import main
from sgl_kernel_sm120.tune.fit import Sample, fit
from sgl_kernel_sm120.tune.measure import EXTRA, ROWS, SPLITS

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
COSTS = Costs(tile=2.5, fixed=4.0, merge=3.0, part=6.0)


def samples(costs: Costs, noise: float = 0.0) -> list[Sample]:
    """Times as a card with these costs would give, over what the command measures."""
    found, dice = [], random.Random(0)
    for rows in ROWS:
        for width in EXTRA:
            work = Work(rows, 16, (128, width), 16)
            for splits in SPLITS:
                time = makespan(work, splits, Machine(188, 2, costs)) * (1 + noise * dice.uniform(-1, 1))
                found.append(Sample(work, splits, time))
    return found


def test_the_costs_that_made_the_times_are_found():
    found, error = fit(samples(COSTS), 188, 2)
    assert vars(found) == pytest.approx(vars(COSTS), rel=1e-6)
    assert error < 1e-6


def test_noise_moves_them_little_and_is_reported():
    found, error = fit(samples(COSTS, noise=0.05), 188, 2)
    assert vars(found) == pytest.approx(vars(COSTS), rel=0.15)
    assert 0.01 < error < 0.05


def test_no_cost_is_below_zero():
    made = samples(Costs(tile=2.0, fixed=1.0, merge=0.0, part=0.0))
    shorter = [replace(one, microseconds=one.microseconds * (0.9 if one.splits > 1 else 1.0)) for one in made]
    found, _ = fit(shorter, 188, 2)
    assert min(vars(found).values()) >= 0


def test_samples_that_determine_nothing_are_refused():
    with pytest.raises(ValueError, match="vary rows, candidates and splits"):
        fit(samples(COSTS)[:1] * 10, 188, 2)


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Calibration]:
    launch = AttendLaunch()
    kept = Calibration("RTX PRO 6000", 120, 188, launch, COSTS, 0.03, calibration.digest(launch, 120))
    calibration.write(tmp_path / "t.json", kept)
    return tmp_path / "t.json", kept


def test_a_table_comes_back_and_says_what_the_policy_needs(table: tuple[Path, Calibration]):
    path, kept = table
    assert calibration.read(path) == kept
    assert kept.machine() == Machine(188, 2, COSTS)
    calibration.check(path, kept, "RTX PRO 6000", 188, AttendLaunch())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"version": 2}, "not a table of version 1"),
        ({"costs": {"tile": 1.0}}, "costs must be"),
        ({"costs": {**vars(COSTS), "tile": "1"}}, "a cost is no number"),
        ({"costs": {**vars(COSTS), "fixed": -1.0}}, "fixed=-1.0 is no cost"),
        ({"launch": {"block_t": 64}}, "block_t=64"),
        ({"gpu": 5}, "gpu is not a str"),
        ({"multiprocessors": 0}, "0 multiprocessors"),
        ({"other": 1}, "other"),
    ],
)
def test_a_malformed_table_is_refused_and_named(table: tuple[Path, Calibration], changed: dict, named: str):
    path, _ = table
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(CalibrationError, match=rf"t\.json: .*{named}"):
        calibration.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(CalibrationError, match=r"t\.json"):
        calibration.read(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("of", "named"),
    [
        ({"gpu": "H200"}, "this is RTX PRO 6000"),
        ({"multiprocessors": 84}, r"\(84 multiprocessors\)"),
        ({"launch": AttendLaunch(32)}, "block_t=32"),
        ({"kernel": "0123456789abcdef"}, "other kernels or another triton"),
    ],
)
def test_a_table_of_another_card_launch_or_kernel_is_refused(table: tuple[Path, Calibration], of: dict, named: str):
    path, kept = table
    with pytest.raises(CalibrationError, match=rf"{named}.*python -m sgl_kernel_sm120\.tune"):
        calibration.check(path, replace(kept, **of), "RTX PRO 6000", 188, AttendLaunch())


def test_show_prints_choices_by_assumed_costs_or_by_a_table(
    table: tuple[Path, Calibration], capsys: pytest.CaptureFixture[str]
):
    assert main(["--show", "--rows", "1", "96"]) == 0
    printed = capsys.readouterr().out
    assert "not measured" in printed
    assert "10 of 10 choices are no worse than either rule" in printed
    assert main(["--show", "--rows", "16", "--table", str(table[0])]) == 0
    assert "RTX PRO 6000, microseconds: tile 2.50" in capsys.readouterr().out
    assert main(["--show", "--table", str(table[0].parent / "none.json")]) == 1


@no_gpu
def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["--out", str(tmp_path / "t.json")]) == 1
    assert "not measured: no GPU here" in capsys.readouterr().out
    assert not (tmp_path / "t.json").exists()
