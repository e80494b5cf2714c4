"""The stress test of overlap: its verdict, and without a GPU what it captures."""

import csv
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bench_overlap
from harness.lab import Lab
from overlap_stress import Outcome

ROOT = Path(__file__).parents[3]
GOOD = Outcome(rows=4, stalled="indexer", replays=100, differing=0, buffers=0)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as one:
        yield one


def test_a_replay_or_a_buffer_that_differs_is_bad():
    assert GOOD.good
    assert not replace(GOOD, differing=1).good
    assert not replace(GOOD, buffers=1).good


def test_the_verdict_names_what_differs():
    assert bench_overlap.verdict("H200", [GOOD, GOOD]) == "H200: 200 replays, every bit the same"
    assert bench_overlap.verdict("H200", [GOOD, replace(GOOD, differing=1)]) == (
        "H200: 200 replays, DIFFERENT in 4 rows with indexer held up"
    )


def test_raw_results_are_kept(tmp_path: Path):
    bench_overlap.write(tmp_path / "found.csv", [GOOD])
    with (tmp_path / "found.csv").open() as file:
        assert list(csv.DictReader(file)) == [
            {"rows": "4", "stalled": "indexer", "replays": "100", "differing": "0", "buffers": "0"}
        ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_measured_and_check_fails(capsys: pytest.CaptureFixture[str]):
    assert bench_overlap.main([]) == 0
    assert "not measured" in capsys.readouterr().out
    assert bench_overlap.main(["--check"]) == 1


@pytest.mark.parametrize("ours", [False, True], ids=["upstream", "ours"])
def test_each_stream_is_held_up_in_turn_and_nothing_else_is_wrong(lab: Lab, ours: bool):
    """Upstream's layers on CPU tensors, under the checker."""
    overlap = {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"} if ours else {}
    seen = lab.call("harness.streams.bench:stress", 3, on=ours, mma=ours, **overlap)
    assert seen["findings"] == []
    assert seen["stalled"] == ["main", "window store", "compressor", "indexer", "index queries", "index weights"]
    assert seen["spins"] == ["main", "kv", "compressor", "indexer", "index-q", "index-weights"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_stall_changes_a_bit():
    """In a process of its own: kernels are interpreted in this one."""
    command = [sys.executable, str(ROOT / "benchmark/kernels/bench_overlap.py"), "--check", "--replays", "100"]
    done = subprocess.run([*command, "--batches", "4", "96"], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every bit the same" in done.stdout
