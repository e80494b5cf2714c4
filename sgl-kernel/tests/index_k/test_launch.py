from dataclasses import replace

import pytest

from sgl_kernel_sm120.gate.arch import ARCHS
from sgl_kernel_sm120.index_k import launch
from sgl_kernel_sm120.index_k.configs import configs


@pytest.mark.parametrize(
    ("made", "field", "value"),
    [
        (launch.RowsLaunch(), "rows", 3),
        (launch.RowsLaunch(), "num_warps", 16),
        (launch.DecodeLaunch(), "block_keys", 128),
        (launch.DecodeLaunch(), "num_warps", 3),
        (launch.DecodeLaunch(), "num_stages", 0),
        (launch.DecodeLaunch(), "programs", 100),
        (launch.PrefillLaunch(), "rows", 8),
        (launch.PrefillLaunch(), "num_warps", 16),
        (launch.PrefillLaunch(rows=4, num_warps=8), "num_warps", 4),
        (launch.PrefillLaunch(), "num_stages", 4),
    ],
)
def test_a_value_that_was_not_compiled_is_refused_and_named(made, field, value):
    with pytest.raises(launch.LaunchError, match=f"{field}={value} is not one of"):
        replace(made, **{field: value})


def test_defaults_by_architecture():
    assert [launch.defaults(major) for major in (9, 10)] == [launch.SM90] * 2
    assert [launch.defaults(major) for major in (12, 0)] == [launch.SM120] * 2


def test_every_default_is_among_the_configurations_of_the_gate():
    names = {config.name for config in configs()}
    for one in (launch.SM90, launch.SM120):
        decode, pre = one.decode, one.prefill
        assert {
            f"store decode rows={one.store.rows} warps={one.store.num_warps}",
            f"store extend rows={one.store.rows} warps={one.store.num_warps}",
            f"query positions=i64 rows={one.query.rows} warps={one.query.num_warps}",
            f"decode keys={decode.block_keys} warps={decode.num_warps} stages={decode.num_stages}",
            f"prefill rows={pre.rows} keys={pre.block_keys} warps={pre.num_warps} stages={pre.num_stages}",
        } <= names


def test_the_gate_counts_on_several_resident_programs_of_each_default():
    counted = {name for config in configs() for name in config.blocks}
    assert counted == set(ARCHS)
