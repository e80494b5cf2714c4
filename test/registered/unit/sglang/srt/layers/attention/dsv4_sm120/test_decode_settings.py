import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch, LaunchError
from sglang.srt.layers.attention.dsv4_sm120 import decode_settings
from sglang_pd.environ import EnvError, validate

PREFIX = "SGLANG_SM120_MMA_"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Settings are read once per process."""
    for one in (decode_settings.word, decode_settings.launch, decode_settings.machine):
        one.cache_clear()
    yield
    for one in (decode_settings.word, decode_settings.launch, decode_settings.machine):
        one.cache_clear()


def test_without_variables_the_defaults():
    assert decode_settings.launch() == AttendLaunch()
    assert decode_settings.word() is None


@pytest.mark.parametrize(("name", "value"), [("BLOCK_T", 32), ("NUM_WARPS", 4), ("NUM_STAGES", 2)])
def test_every_variable_reaches_the_launch(name: str, value: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PREFIX + name, str(value))
    assert getattr(decode_settings.launch(), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("BLOCK_T", "64", "16, 32"),
        ("NUM_WARPS", "16", "4, 8"),
        ("NUM_STAGES", "0", "1, 2, 3"),
        ("TARGET_CTAS", "0", "a whole number from 1"),
        ("TARGET_CTAS", "many", "a whole number from 1"),
        ("TABLE", "table.json", "an absolute path"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, text: str, allowed: str):
    with pytest.raises(EnvError, match=f"{PREFIX}{name}='{text}' is not valid; allowed: {allowed}"):
        validate({PREFIX + name: text})


def test_what_does_not_fit_is_refused_by_the_gates_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PREFIX + "BLOCK_T", "32")
    monkeypatch.setenv(PREFIX + "NUM_STAGES", "3")
    with pytest.raises(LaunchError, match="147456 bytes of shared memory; a block has 101376"):
        decode_settings.launch()


def test_scratch_is_that_of_the_target_in_two_pools(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PREFIX + "TARGET_CTAS", "512")
    assert decode_settings.scratch_bytes() == 2 * 512 * 16 * 513 * 4


def test_splits_are_the_same_for_the_same_shapes(monkeypatch: pytest.MonkeyPatch):
    device = torch.device("cpu")
    assert decode_settings.splits(16, 16, (128, 512), device) == decode_settings.splits(16, 16, (128, 512), device) >= 1
    monkeypatch.setenv(PREFIX + "TARGET_CTAS", "16")
    assert decode_settings.splits(16, 16, (128, 512), device) == 1


def test_importing_touches_no_gpu():
    code = (
        "import torch, sglang.srt.layers.attention.dsv4_sm120.decode, sgl_kernel_sm120.tune.measure;"
        "print(torch.cuda.is_initialized())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert done.stdout.strip() == "False"
