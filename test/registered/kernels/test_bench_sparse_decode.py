"""The sparse decode benchmark's verdict; that the page quotes the kept gate; with a GPU, correctness and replays."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bench_sparse_decode
import sparse_decode_speed as speed

ROOT = Path(__file__).parents[3]


def row(kernel: str, microseconds: float) -> speed.Row:
    return speed.Row(kernel, "C4", 16, 8192, 1, microseconds, 1.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "fast"),
    [
        ([row("ours", 10), row("upstream triton", 50)], True),
        ([row("ours", 10), row("upstream triton", 49)], False),
        ([row("ours", 10)], False),
        ([], False),
    ],
)
def test_ours_must_be_five_times_as_fast_as_upstreams_triton_kernel(rows: list[speed.Row], fast: bool):
    assert bench_sparse_decode.fast(rows) is fast


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_nothing_is_measured_and_check_fails(capsys: pytest.CaptureFixture[str]):
    assert bench_sparse_decode.main([]) == 0
    assert "not measured" in capsys.readouterr().out
    assert bench_sparse_decode.main(["--check"]) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_and_replayed_a_thousand_times():
    """In a process of its own: kernels are interpreted in this one."""
    command = [sys.executable, str(ROOT / "benchmark/kernels/bench_sparse_decode.py"), "--only", "replay", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1000 replays of a captured graph differ" in done.stdout


def test_the_page_quotes_the_kept_gate():
    page = (ROOT / "docs/kernels.md").read_text()
    with (ROOT / "sgl-kernel/results/compile_gate_sparse_mla.csv").open() as file:
        lines = [
            f"| {row['config']} | {row['arch']} | {row['shared']} | {row['registers']} | {row['blocks']} |"
            for row in csv.DictReader(file)
        ]
    assert len(lines) == 22
    assert [line for line in lines if line not in page] == []
