from types import SimpleNamespace

import pytest

from sglang_pd.cpu.settings import MAX_TOTAL_TOKENS, flag_defaults, thread_binding


def args(mode="null", **given):
    flags = {
        "attention_backend": None,
        "max_total_tokens": None,
        "disaggregation_decode_retraction_backup": None,
        "sleep_on_idle": False,
    }
    return SimpleNamespace(disaggregation_mode=mode, **{**flags, **given})


def test_defaults_of_an_undivided_server():
    assert flag_defaults(args()) == {
        "attention_backend": "torch_native",
        "max_total_tokens": MAX_TOTAL_TOKENS,
        "sleep_on_idle": True,
    }


def test_decode_keeps_retracted_kv_in_tensors():
    assert flag_defaults(args("decode"))["disaggregation_decode_retraction_backup"] == "cpu_tensor"
    assert "disaggregation_decode_retraction_backup" not in flag_defaults(args("prefill"))


def test_explicit_flags_win():
    given = {"attention_backend": "intel_amx", "max_total_tokens": 5, "disaggregation_decode_retraction_backup": "none"}
    assert flag_defaults(args("decode", **given)) == {"sleep_on_idle": True}


@pytest.mark.parametrize(
    ("ranks", "cores", "binding"),
    [
        (2, [0, 1], "0|1"),
        (2, [0, 1, 2, 3], "0,1|2,3"),
        (2, [4, 6, 9], "4|6"),
        (4, [0, 1], "0,1|0,1|0,1|0,1"),
        (1, [0, 1], "0,1"),
    ],
)
def test_cores_are_shared_out_among_ranks(ranks, cores, binding):
    assert thread_binding(ranks, cores) == binding
