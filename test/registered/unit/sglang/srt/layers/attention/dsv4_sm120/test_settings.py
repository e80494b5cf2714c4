import pytest

from sgl_kernel_sm120.index_k.launch import SM90, SM120
from sglang.srt.layers.attention.dsv4_sm120 import settings
from sglang_pd.environ import EnvError, fields, validate

PREFIX = "SGLANG_DSV4_BF16_INDEX_K_"
CHOICES = {name: field for name, field in fields().items() if name.startswith(PREFIX) and hasattr(field, "choices")}


def test_without_variables_each_architecture_has_its_default():
    assert settings.launch_for(9) == SM90
    assert settings.launch_for(12) == SM120


@pytest.mark.parametrize("name", CHOICES)
def test_every_variable_reaches_the_launch(name: str, monkeypatch: pytest.MonkeyPatch):
    kernel, _, field = name.removeprefix(PREFIX).lower().partition("_")
    default = getattr(getattr(SM120, kernel), field)
    other = next(value for value in CHOICES[name].choices if value != default)
    monkeypatch.setenv(name, str(other))
    if name.endswith("PREFILL_ROWS") and other == 4:
        monkeypatch.setenv(f"{PREFIX}PREFILL_NUM_WARPS", "8")
    assert getattr(getattr(settings.launch_for(12), kernel), field) == other


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("text", ["5", "", "64.0", "many", "-4"])
def test_a_value_that_was_not_compiled_is_refused_with_what_is_allowed(name: str, text: str):
    with pytest.raises(EnvError, match=f"{name}={text!r} is not valid; allowed: {CHOICES[name].allowed}"):
        validate({name: text})


def test_an_unknown_name_is_warned_about():
    (warning,) = validate({f"{PREFIX}DECODE_WARPS": "4"})
    assert f"{PREFIX}DECODE_NUM_WARPS" in warning


def test_scratch_is_in_mib(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(f"{PREFIX}LOGITS_MIB", "3")
    assert settings.scratch_bytes() == 3 << 20
