"""Who attends: upstream's variable for its SM120 backends, with one more word.

| ``SGLANG_SM120_FLASHMLA_BACKEND`` | rows of decode | rows of prefill |
|---|---|---|
| not set | FlashInfer to 64 rows; ours above, where FlashInfer has its prefill kernel only | FlashInfer |
| ``mma`` | ours | ours |
| ``flashinfer``, ``triton``, ``torch`` | that one | that one |
"""

from __future__ import annotations

VARIABLE = "SGLANG_SM120_FLASHMLA_BACKEND"
OURS = "mma"
WORDS = ("flashinfer", "triton", "torch", OURS)
FLASHINFER_MAX_ROWS = 64  # of its decode kernel


def is_ours(word: str | None, rows: int, decode: bool) -> bool:
    """Whether our kernel attends for ``rows`` rows. ``word``: the variable as it stands, None where it is not set."""
    if word is None:
        return decode and rows > FLASHINFER_MAX_ROWS
    return word == OURS


def problem(word: str | None) -> str | None:
    """What is wrong with the variable's value; upstream takes any other word for ``torch``, its slowest."""
    if word is None or word in WORDS:
        return None
    return f"{VARIABLE}={word!r} is not valid; allowed: {', '.join(WORDS)}"
