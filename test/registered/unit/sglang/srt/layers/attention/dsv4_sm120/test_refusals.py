from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.dsv4.startup import model_folder
from harness.lab import Lab
from sglang.srt.layers.attention.dsv4_sm120.refusals import Asked, problems

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
GOOD = Asked("deepseek_v4", True, cuda=True, fp4_indexer=False, hisparse=False, storage="file", capability=12)


def test_what_can_be_served_has_no_problem():
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": "deepseek_v41"}, "DeepSeek-V4.1"),
        ({"cuda": False}, "needs an NVIDIA GPU"),
        ({"fp4_indexer": True}, "--enable-deepseek-v4-fp4-indexer"),
        ({"hisparse": True}, "--enable-hisparse"),
        ({"storage": "aibrix"}, "--hicache-storage-backend aibrix"),
    ],
)
def test_each_reason_is_named_with_the_variable(changed: dict, reason: str):
    (problem,) = problems(replace(GOOD, **changed))
    assert reason in problem
    assert "SGLANG_DSV4_BF16_INDEX_K=1" in problem


def test_launch_values_that_do_not_go_together_are_a_problem(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SGLANG_DSV4_BF16_INDEX_K_PREFILL_ROWS", "4")
    (problem,) = problems(GOOD)
    assert "prefill logits of 4 rows: num_warps=4 is not one of 8" in problem
    monkeypatch.setenv("SGLANG_DSV4_BF16_INDEX_K_PREFILL_NUM_WARPS", "8")
    assert problems(GOOD) == []


@no_gpu
def test_a_server_on_a_machine_without_cuda_is_refused_before_it_loads(lab: Lab, tmp_path: Path):
    """Upstream's whole resolution of arguments, as in a server, with ours in its place."""
    code, said = lab.call("harness.dsv4.startup:resolve", model_folder(tmp_path), on=True)
    assert code == 2
    assert "refusing to start: SGLANG_DSV4_BF16_INDEX_K=1 needs an NVIDIA GPU" in said


@no_gpu
def test_all_reasons_are_named_at_once(lab: Lab, tmp_path: Path):
    hisparse = {"enable_hisparse": True, "disable_radix_cache": True}
    code, said = lab.call("harness.dsv4.startup:resolve", model_folder(tmp_path), hisparse, on=True)
    assert code == 2
    assert "needs an NVIDIA GPU" in said
    assert "--enable-hisparse" in said


def test_off_the_same_arguments_are_upstreams_business(lab: Lab, tmp_path: Path):
    code, said = lab.call("harness.dsv4.startup:resolve", model_folder(tmp_path), on=False)
    assert code == 0
    assert "refusing" not in said


def test_another_model_is_served_as_ever(lab: Lab, tmp_path: Path):
    folder = model_folder(tmp_path, "llama", "LlamaForCausalLM")
    code, said = lab.call("harness.dsv4.startup:resolve", folder, on=True)
    assert code == 0
    assert "refusing" not in said
