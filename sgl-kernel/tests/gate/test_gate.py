"""The gate's arithmetic and verdicts; that the kept table speaks of the present kernels; and a live compile of some.

All configurations: ``python -m sgl_kernel_sm120.gate index_k --out sgl-kernel/results/compile_gate_index_k.csv``.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sgl_kernel_sm120.gate import results
from sgl_kernel_sm120.gate.arch import ARCHS, SM90A, SM120A
from sgl_kernel_sm120.gate.compiler import GateError, Measured, measure
from sgl_kernel_sm120.gate.tables import TABLES
from sgl_kernel_sm120.gate.verdict import judge

KEPT = Path(__file__).parents[2] / "results"
GOOD = Measured(shared=33024, registers=96, spilled=0, matrix=64)


@pytest.fixture(scope="module")
def config():
    return next(c for c in TABLES["index_k"]() if c.name == "decode keys=64 warps=4 stages=2")


@pytest.mark.parametrize("table", sorted(TABLES))
def test_the_kept_table_is_of_the_present_kernels_and_all_pass(table):
    rows = results.read(KEPT / f"compile_gate_{table}.csv")
    assert results.out_of_date(rows, TABLES[table](), list(ARCHS.values())) == []
    assert [row for row in rows if not row.passes] == []


def test_names_of_configurations_are_unique():
    for table in TABLES.values():
        names = [config.name for config in table()]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("shared", "registers", "warps", "sm120", "sm90"),
    [
        (0, 32, 1, 24, 32),  # the most blocks that there can be
        (33024, 96, 4, 3, 5),  # registers: 96 * 128 * 5 = 61440; shared: 3 * 34048 = 102144
        (101376, 64, 4, 1, 2),
        (1024, 255, 8, 1, 1),  # 256 * 256 registers are all there are
        (0, 32, 8, 6, 8),  # threads: 1536 and 2048
    ],
)
def test_resident_blocks(shared, registers, warps, sm120, sm90):
    assert SM120A.resident_blocks(shared, registers, warps) == sm120
    assert SM90A.resident_blocks(shared, registers, warps) == sm90


def test_a_good_configuration_passes(config):
    assert judge(config, SM120A, GOOD).passes


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"shared": 101377}, "101377 bytes of shared memory, a block has 101376"),
        ({"spilled": 8}, "8 bytes spilled"),
        ({"matrix": 0}, "no mma.sync"),
        ({"registers": 240}, "2 blocks per multiprocessor, 3 are counted on"),
    ],
)
def test_what_is_wrong_is_named(config, wrong, reason):
    row = judge(config, SM120A, replace(GOOD, **wrong))
    assert not row.passes
    assert reason in row.failures


def test_a_changed_constant_type_or_launch_changes_the_digest(config):
    digests = {
        config.digest("sm_120a"),
        config.digest("sm_90a"),
        replace(config, num_warps=8).digest("sm_120a"),
        replace(config, constants={**config.constants, "BLOCK_KEYS": 32}).digest("sm_120a"),
        replace(config, types={**config.types, "width": "i64"}).digest("sm_120a"),
    }
    assert len(digests) == 5


def test_a_changed_device_function_changes_the_digest_of_its_callers(monkeypatch):
    from sgl_kernel_sm120.index_k import rotate, store

    config = next(c for c in TABLES["index_k"]() if c.kernel is store.store_keys_kernel)
    before = config.digest("sm_120a")

    class Other:
        @staticmethod
        def fn():
            """Another rope_hadamard."""

    Other.fn.__module__ = rotate.__name__
    monkeypatch.setitem(store.store_keys_kernel.fn.__globals__, "rope_hadamard", Other)
    assert config.digest("sm_120a") != before


def test_a_kept_table_comes_back_and_shows_what_is_out_of_date(tmp_path, config):
    row = judge(config, SM120A, GOOD)
    results.write(tmp_path / "t.csv", [row, replace(row, config="gone")])
    rows = results.read(tmp_path / "t.csv")
    assert rows == [row, replace(row, config="gone")]
    changed = replace(config, num_stages=4)
    assert results.out_of_date(rows, [changed], [SM120A, SM90A]) == [
        f"{config.name} on sm_90a is missing",
        "gone on sm_120a is no configuration",
        f"{config.name} on sm_120a changed",
    ]


def test_interpreted_kernels_are_refused(config):
    with pytest.raises(GateError, match="interpreted"):
        measure(config, SM120A)


def test_defaults_compile_here_as_the_kept_table_says(tmp_path):
    """In a process where kernels are not interpreted."""
    out = tmp_path / "gate.csv"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "sgl_kernel_sm120.gate", "index_k", "--out", str(out)]
    for name in ("decode keys=64 warps=4 stages=2", "prefill rows=2 keys=64 warps=4 stages=2"):
        command += ["--only", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 pass" in done.stdout
    kept = {(row.config, row.arch): row for row in results.read(KEPT / "compile_gate_index_k.csv")}
    for row in results.read(out):
        assert row == kept[row.config, row.arch]
