from pathlib import Path

import pytest

from sgl_kernel_sm120.gate import results
from sgl_kernel_sm120.gate.arch import SM120A
from sgl_kernel_sm120.sparse_mla import launch
from sgl_kernel_sm120.sparse_mla.configs import configs
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch, LaunchError

KEPT = Path(__file__).parents[2] / "results/compile_gate_sparse_mla.csv"


def test_every_combination_is_either_compiled_or_known_to_be_too_large():
    every = {(t, w, s) for t in launch.BLOCK_T for w in launch.NUM_WARPS for s in launch.NUM_STAGES}
    assert set(launch.RESIDENT) | set(launch.TOO_LARGE) == every
    assert not set(launch.RESIDENT) & set(launch.TOO_LARGE)
    names = {config.name for config in configs()}
    assert {f"attend keys={t} warps={w} stages={s}" for t, w, s in launch.RESIDENT} < names


def test_resident_programs_are_exactly_those_of_the_kept_table():
    kept = {(row.config, row.arch): row.blocks for row in results.read(KEPT)}
    for (keys, warps, stages), both in launch.RESIDENT.items():
        name = f"attend keys={keys} warps={warps} stages={stages}"
        assert (kept[name, "sm_120a"], kept[name, "sm_90a"]) == both
        one = AttendLaunch(keys, warps, stages)
        assert (one.resident(12), one.resident(9), one.resident(8)) == (*both, 1)


def test_the_matrix_unit_is_used_on_both():
    assert all(row.matrix > 0 for row in results.read(KEPT) if row.config.startswith("attend"))


@pytest.mark.parametrize("key", launch.TOO_LARGE)
def test_what_is_too_large_is_refused_with_its_bytes(key: tuple[int, int, int]):
    assert launch.TOO_LARGE[key] > SM120A.shared_per_block
    with pytest.raises(LaunchError, match=f"{launch.TOO_LARGE[key]} bytes of shared memory; a block has 101376"):
        AttendLaunch(*key)


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"block_t": 64}, "block_t=64"), ({"num_warps": 2}, "num_warps=2"), ({"num_stages": 4}, "num_st")],
)
def test_a_value_that_was_not_compiled_is_refused_and_named(changed: dict, named: str):
    with pytest.raises(LaunchError, match=named):
        AttendLaunch(**changed)
