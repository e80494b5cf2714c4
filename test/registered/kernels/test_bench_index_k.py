"""The index-K benchmark: its formats, its recall, its verdict; and that the pages quote what was measured."""

import csv
from pathlib import Path

import pytest
import torch

import bench_index_k
import index_k_recall as recall
import index_k_speed as speed
from sgl_kernel_sm120.index_k import reference

ROOT = Path(__file__).parents[3]


def kept() -> dict[tuple[int, str, bool, str], float]:
    with (ROOT / "benchmark/kernels/results/index_k_recall.csv").open() as file:
        return {
            (int(row["keys"]), row["data"], row["hadamard"] == "True", row["format"]): float(row["recall"])
            for row in csv.DictReader(file)
        }


def test_fp8_and_fp4_round_to_the_nearest_value_they_have():
    x = torch.randn(50, 128)
    for quantise, values in (
        (recall.fp8, torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()),
        (recall.fp4, torch.cat([recall.FP4_VALUES, -recall.FP4_VALUES])),
    ):
        group = 128 if quantise is recall.fp8 else 32
        seen = quantise(x).unflatten(-1, (-1, group))
        groups = x.unflatten(-1, (-1, group))
        values = values[values.isfinite()]
        for given, found in zip(groups.flatten(0, 1)[:20], seen.flatten(0, 1)[:20], strict=True):
            peak = given.abs().max()
            scale = peak / 448 if quantise is recall.fp8 else torch.exp2(torch.ceil(torch.log2(peak / 6)))
            nearest = (given[:, None] - values * scale).abs().min(1).values
            assert torch.allclose((given - found).abs(), nearest, atol=1e-6)


def test_recall_is_the_part_of_the_truth_that_was_found():
    assert recall.recall(torch.tensor([1, 2, 3, 9]), torch.tensor([1, 2, 3, 4])) == 0.75


def test_each_format_keeps_more_the_more_bits_it_has():
    rows = list(recall.measure([2048], queries=2))
    assert len(rows) == 12
    for data in ("random", "outliers"):
        found = {row.format: row.recall for row in rows if row.data == data and row.hadamard}
        assert found["bf16"] > found["fp8"] > found["fp4"]
        assert found["bf16"] > 0.99


def test_the_kept_recall_is_complete_and_what_the_benchmark_gives():
    rows = kept()
    assert len(rows) == len(bench_index_k.SIZES) * 2 * 2 * 3
    for row in recall.measure([2048], queries=8):
        assert rows[row.keys, row.data, row.hadamard, row.format] == pytest.approx(row.recall, abs=0.002)


def test_the_page_quotes_the_kept_recall():
    page = (ROOT / "docs/kernels.md").read_text()
    rows = kept()
    for count in bench_index_k.SIZES:
        cells = [rows[count, data, True, name] for data in ("random", "outliers") for name in recall.FORMATS]
        assert f"| {count} | {' | '.join(f'{cell:.3f}' for cell in cells)} |" in page


def test_the_page_quotes_the_kept_gate():
    page = (ROOT / "docs/kernels.md").read_text()
    with (ROOT / "sgl-kernel/results/compile_gate_index_k.csv").open() as file:
        lines = [
            f"| {row['config']} | {row['arch']} | {row['shared']} | {row['registers']} | {row['blocks']} |"
            for row in csv.DictReader(file)
        ]
    assert sum(line in page for line in lines) == 8


def test_without_a_gpu_speed_is_not_measured_and_check_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    assert bench_index_k.main(["--only", "speed", "--out", str(tmp_path)]) == 0
    assert "speed: not measured" in capsys.readouterr().out
    assert bench_index_k.main(["--only", "speed", "--out", str(tmp_path), "--check"]) == 1


def test_recall_is_written_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert bench_index_k.main(["--only", "recall", "--keys", "600", "--queries", "1", "--out", str(tmp_path)]) == 0
    with (tmp_path / "index_k_recall.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    printed = capsys.readouterr().out
    assert all(f"recall {float(row['recall']):.4f}" in printed for row in rows)


def test_the_torch_baseline_computes_the_same_logits():
    q, keys = torch.randn(2, 64, 128).bfloat16(), torch.randn(6, 64, 128).bfloat16()
    weights, table = torch.randn(2, 64) / 90, torch.randperm(6).int().view(2, 3)
    lens = torch.tensor([192, 192], dtype=torch.int32)
    found = speed.torch_logits(speed.Case(q, keys, weights, table, lens))
    exact = reference.logits(q, keys, weights, table, lens)
    assert (found.double() - exact).abs().max() < 0.05


@pytest.mark.parametrize(("decode", "prefill", "met"), [(0.9, 0.7, True), (0.8, 0.7, False), (0.9, 0.5, False)])
def test_targets_are_parts_of_what_the_card_does(decode: float, prefill: float, met: bool):
    rows = [
        speed.Row("decode bf16", 16, 131072, 1.0, 1.0, 1.0, decode),
        speed.Row("decode bf16", 16, 8192, 1.0, 1.0, 1.0, 0.1),  # small sizes have no target
        speed.Row("prefill bf16", 512, 8192, 1.0, 1.0, 1.0, prefill),
    ]
    assert bench_index_k.met(rows) is met
    assert not bench_index_k.met(rows[1:])
