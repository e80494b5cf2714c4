from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.dsv4.startup import model_folder
from harness.lab import Lab
from sglang.srt.layers.attention.dsv4_sm120 import decode_settings
from sglang.srt.layers.attention.dsv4_sm120.decode_refusals import Asked, problems, without_effect

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
GOOD = Asked("deepseek_v4", deepseek_v4=True, sm120=True, word="mma")
PREFIX = "SGLANG_SM120_MMA_"


@pytest.fixture(autouse=True)
def fresh():
    decode_settings.launch.cache_clear()
    yield
    decode_settings.launch.cache_clear()


def test_what_can_be_served_has_no_problem():
    assert problems(GOOD) == problems(replace(GOOD, word=None)) == []
    assert without_effect(GOOD) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"word": "mna"}, "SGLANG_SM120_FLASHMLA_BACKEND='mna'"), ({"model_type": "deepseek_v41"}, "DeepSeek-V4.1")],
)
def test_each_reason_is_named(changed: dict, reason: str):
    (problem,) = problems(replace(GOOD, **changed))
    assert reason in problem


def test_a_target_whose_scratch_is_too_large_is_refused_with_its_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PREFIX + "TARGET_CTAS", "100000")
    (problem,) = problems(GOOD)
    assert problem == (
        "SGLANG_SM120_MMA_TARGET_CTAS=100000 takes 6566400000 bytes of memory for partial results; at most 536870912 "
        "are allowed"
    )


def test_a_launch_or_a_table_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(PREFIX + "TABLE", str(tmp_path / "none.json"))
    (problem,) = problems(GOOD)
    assert "SGLANG_SM120_MMA_TABLE" in problem
    assert "none.json" in problem
    monkeypatch.delenv(PREFIX + "TABLE")
    decode_settings.launch.cache_clear()
    monkeypatch.setenv(PREFIX + "BLOCK_T", "32")
    monkeypatch.setenv(PREFIX + "NUM_STAGES", "3")
    (problem,) = problems(GOOD)
    assert "147456 bytes of shared memory" in problem


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"deepseek_v4": False, "model_type": "llama"}, "not DeepSeek-V4"),
        ({"sm120": False}, "not an SM120"),
        ({"word": "flashinfer"}, "SGLANG_SM120_FLASHMLA_BACKEND=flashinfer"),
    ],
)
def test_where_nothing_changes_it_is_said_why(changed: dict, why: str):
    assert why in str(without_effect(replace(GOOD, **changed)))


@no_gpu
def test_a_servers_arguments_are_refused_before_it_loads(lab: Lab, tmp_path: Path):
    folder = model_folder(tmp_path)
    code, said = lab.call(
        "harness.dsv4.startup:resolve", folder, on=False, mma=True, **{PREFIX + "TARGET_CTAS": "9999"}
    )
    assert code == 2
    assert "refusing to start: SGLANG_SM120_MMA_TARGET_CTAS=9999 takes" in said
    code, said = lab.call("harness.dsv4.startup:resolve", folder, on=False, mma=True)
    assert code == 0
    assert "refusing" not in said
