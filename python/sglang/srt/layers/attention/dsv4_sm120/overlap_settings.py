"""Whether attention overlaps, as the environment says."""

from __future__ import annotations

import functools

from sglang_pd.environ import EnvBool, envs, upstream

VARIABLE = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
DEFAULT = False


def problem(word: str | None) -> str | None:
    """What is wrong with the variable's value; upstream warns and overlaps."""
    if word is None:
        return None
    try:
        _parse(word)
    except ValueError:
        return f"{VARIABLE}={word!r} is not valid; allowed: {EnvBool.allowed}"
    return None


@functools.cache
def is_on() -> bool:
    """Once per process: a graph that was captured stays as it is."""
    word = upstream(VARIABLE)
    return DEFAULT if word is None else _parse(word)


def chosen_by() -> str:
    word = upstream(VARIABLE)
    return f"{VARIABLE}={word}" if word is not None else f"the default, with {VARIABLE} not set"


@functools.cache
def max_rows() -> int:
    return envs.SGLANG_PD_OVERLAP_MAX_ROWS.get()


def _parse(word: str) -> bool:
    return EnvBool(DEFAULT, "").parse(word)
