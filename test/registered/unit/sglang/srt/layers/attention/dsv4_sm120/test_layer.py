"""Upstream's whole attention backend with our kernels, beside a layer written down in float64."""

import pytest

from harness.lab import Lab

RATIOS = (0, 4, 128)
# Sums in fp32 against float64, after the rounding of an output to bf16.
ALLOWED = 1e-3
# Standard deviations of the scores that rounding may mistake. FP8 (upstream's) rounds queries and keys by 2.6 % each,
# which moves a score of 64 rectified products by some 0.06; the worst of two out of dozens is 0.3. What bf16 rounds
# is a fraction of that.
REGRET = {True: 0.02, False: 0.3}


@pytest.mark.parametrize("bf16_index_keys", [False, True])
def test_extend_and_decode_match_the_layer_in_float64(lab: Lab, bf16_index_keys: bool):
    rows = lab.call(
        "harness.dsv4.layer_run:run",
        on=bf16_index_keys,
        mma=True,
        SGLANG_SM120_MMA_BLOCK_T="32",
        SGLANG_FP8_PAGED_MQA_LOGITS_TORCH="1",  # upstream's FP8 scores then need no GPU
    )
    assert {(row["step"], row["ratio"]) for row in rows} == {
        (step, ratio) for step in ("extend", *(f"decode {n}" for n in range(3))) for ratio in RATIOS
    }
    assert [row for row in rows if row["excess"] > ALLOWED] == []
    # Not so if a single key were missing, from the longest row to the shortest.
    assert [row for row in rows if row["one_less"] < 3 * ALLOWED] == []
    chosen = [row for row in rows if row["choosing"]]
    assert len(chosen) >= 5
    assert max(row["regret"] for row in chosen) <= REGRET[bf16_index_keys]
