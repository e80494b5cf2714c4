"""Which batches overlap, and what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.dsv4.startup import model_folder
from harness.lab import Lab
from harness.streams.session import Case
from sglang.srt.layers.attention.dsv4_sm120 import overlap, overlap_settings
from sglang.srt.layers.attention.dsv4_sm120.overlap_refusals import Asked, problems, without_effect
from sglang_pd import hooks

VARIABLE = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
ROWS = "SGLANG_PD_OVERLAP_MAX_ROWS"
OPERATIONS = "harness.streams.run:operations"
GOOD = Asked(deepseek_v4=True, word="1", fp8_gemm="auto", pdmux=False, graphs=True)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch):
    for name in (VARIABLE, ROWS):
        monkeypatch.delenv(name, raising=False)
    overlap_settings.is_on.cache_clear()
    overlap_settings.max_rows.cache_clear()
    yield
    overlap_settings.is_on.cache_clear()
    overlap_settings.max_rows.cache_clear()


def streams(lab: Lab, case: Case, **environment: str) -> set[str]:
    """On which streams the captured forward has operations, with our kernels."""
    return {stream for stream, _ in lab.call(OPERATIONS, case, on=True, mma=True, **environment)}


def test_not_set_with_our_kernels_everything_is_on_one_stream(lab: Lab):
    assert streams(lab, Case()) == {"main"}


def test_0_is_one_stream_and_1_is_six(lab: Lab):
    assert streams(lab, Case(), **{VARIABLE: "0"}) == {"main"}
    assert len(streams(lab, Case(), **{VARIABLE: "1"})) == 6


def test_a_batch_above_the_limit_is_on_one_stream(lab: Lab):
    limit = {VARIABLE: "1", ROWS: "2"}
    assert streams(lab, Case(batches=(3,)), **limit) == {"main"}
    assert len(streams(lab, Case(batches=(2,)), **limit)) == 6


def test_verification_counts_rows_not_requests(lab: Lab):
    assert streams(lab, Case("TARGET_VERIFY", (2,)), **{VARIABLE: "1", ROWS: "5"}) == {"main"}
    assert len(streams(lab, Case("TARGET_VERIFY", (2,)), **{VARIABLE: "1", ROWS: "6"})) == 6


def test_a_prefill_is_on_one_stream(lab: Lab):
    assert streams(lab, Case("EXTEND"), **{VARIABLE: "1"}) == {"main"}


def test_on_one_stream_the_same_kernels_run_as_often(lab: Lab):
    """Only the streams differ, so that a card may compare results bit by bit."""
    on, limited = (
        sorted(name for _, name in lab.call(OPERATIONS, Case(), on=True, mma=True, **{VARIABLE: "1", ROWS: rows}))
        for rows in ("128", "1")
    )
    assert on == limited


def test_without_our_kernels_and_not_set_overlap_is_upstreams_business(lab: Lab):
    assert lab.call("harness.dsv4.pools:wrapped", ["sglang.srt.models.deepseek_v4.MQALayer.__init__"], on=False) == []


def layer(**changed: object) -> SimpleNamespace:
    backend = SimpleNamespace(value="flashinfer_cutlass")
    made = SimpleNamespace(
        layer_id=3,
        alt_streams=[1, 2, 3],
        alt_streams_indexer=[4, 5],
        indexer=SimpleNamespace(alt_streams=[4, 5]),
        named_modules=lambda: [("wq_b", SimpleNamespace(quant_method=SimpleNamespace(mxfp8_dense_backend=backend)))],
    )
    return SimpleNamespace(**{**vars(made), **changed})


def test_off_a_layer_has_no_side_streams():
    one = layer()
    overlap.settle(None, one)
    assert (one.alt_streams, one.alt_streams_indexer, one.indexer.alt_streams) == (None, None, None)


def test_on_a_layer_whose_projections_share_a_workspace_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Upstream chooses that backend by itself for MXFP8 weights on SM120, whatever the flag says."""
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(overlap.SharedWorkspaceError, match=f"{VARIABLE}=1: wq_b of layer 3"):
        overlap.settle(None, layer())
    one = layer(named_modules=lambda: [("wq_b", SimpleNamespace(quant_method=None))])
    overlap.settle(None, one)
    assert one.alt_streams == [1, 2, 3]


@pytest.mark.parametrize(("word", "a2a", "left"), [("0", False, None), ("0", True, 1), ("1", False, 1)])
def test_off_shared_experts_have_no_stream_either(monkeypatch: pytest.MonkeyPatch, word: str, a2a: bool, left: object):
    monkeypatch.setenv(VARIABLE, word)
    one = SimpleNamespace(mlp=SimpleNamespace(alt_stream=1, _enable_a2a_moe=a2a))
    overlap.settle_experts(None, one)
    assert one.mlp.alt_stream == left


def test_the_choice_is_there_for_status(monkeypatch: pytest.MonkeyPatch):
    assert overlap.state() == {
        "overlap": False,
        "chosen_by": f"the default, with {VARIABLE} not set",
        "max_rows": 0,
        "streams": [],
    }
    overlap_settings.is_on.cache_clear()
    monkeypatch.setenv(VARIABLE, "yes")
    assert overlap.state() == {
        "overlap": True,
        "chosen_by": f"{VARIABLE}=yes",
        "max_rows": 128,
        "streams": ["window store", "compressor", "indexer", "index queries", "index weights"],
    }
    assert "up to 128 rows" in overlap.describe(has_streams=True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"word": "2"}, f"{VARIABLE}='2' is not valid; allowed: 1, true"),
        ({"fp8_gemm": "flashinfer_cutlass"}, "--fp8-gemm-backend flashinfer_cutlass"),
        ({"pdmux": True}, "--enable-pdmux"),
    ],
)
def test_each_reason_is_named(monkeypatch: pytest.MonkeyPatch, changed: dict, reason: str):
    monkeypatch.setenv(VARIABLE, "1")
    assert problems(GOOD) == []
    (problem,) = problems(replace(GOOD, **changed))
    assert reason in problem
    assert VARIABLE in problem


@pytest.mark.parametrize(
    ("environment", "ours"),
    [
        ({}, False),
        ({VARIABLE: "0"}, True),
        ({VARIABLE: "1"}, True),
        ({"SGLANG_DSV4_BF16_INDEX_K": "1"}, True),
        ({"SGLANG_SM120_FLASHMLA_BACKEND": "mma"}, True),
    ],
)
def test_it_is_our_choice_where_a_kernel_of_ours_is_on_or_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], ours: bool
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hooks.dsv4_overlap() is ours


def test_off_nothing_is_refused():
    assert problems(replace(GOOD, word=None, fp8_gemm="flashinfer_cutlass", pdmux=True)) == []


def test_a_variable_without_effect_is_said(monkeypatch: pytest.MonkeyPatch):
    assert "not DeepSeek-V4" in (without_effect(replace(GOOD, deepseek_v4=False)) or "")
    assert without_effect(GOOD) is None
    monkeypatch.setenv(ROWS, "64")
    assert f"{ROWS} has no effect: overlap is off" in (without_effect(GOOD) or "")
    overlap_settings.is_on.cache_clear()
    monkeypatch.setenv(VARIABLE, "1")
    assert without_effect(GOOD) is None
    assert "--disable-cuda-graph" in (without_effect(replace(GOOD, graphs=False)) or "")


@no_gpu
def test_a_server_with_a_shared_workspace_is_refused_before_it_loads(lab: Lab, tmp_path: Path):
    """Upstream's whole resolution of arguments, as in a server, with ours in its place."""
    asked = {"fp8_gemm_runner_backend": "flashinfer_cutlass"}
    for word, refused in (("1", True), ("0", False)):
        code, said = lab.call(
            "harness.dsv4.startup:resolve", model_folder(tmp_path), asked, on=False, mma=True, **{VARIABLE: word}
        )
        assert (code == 2) is refused
        assert ("--fp8-gemm-backend flashinfer_cutlass" in said) is refused
