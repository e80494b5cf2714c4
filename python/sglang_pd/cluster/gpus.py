"""Which GPUs each server of a cluster gets. Pure but for :func:`visible`."""

from __future__ import annotations

import glob
from collections.abc import Sequence

from sglang_pd import environ
from sglang_pd.errors import UserError

_RANK_FLAGS = {
    "--tp": "tp",
    "--tp-size": "tp",
    "--tensor-parallel-size": "tp",
    "--pp-size": "pp",
    "--pipeline-parallel-size": "pp",
}


def visible() -> int:
    """NVIDIA GPUs that a server started from here would see. Asks no driver, so that importing torch is not needed."""
    if environ.upstream("SGLANG_USE_CPU_ENGINE") == "1":
        return 0
    chosen = environ.upstream("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([one for one in chosen.split(",") if one.strip() and one.strip() != "-1"])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def cards_needed(flags: Sequence[str]) -> int:
    """GPUs of one server: tensor-parallel times pipeline-parallel size."""
    sizes = {"tp": 1, "pp": 1}
    for flag, value in _pairs(flags):
        if flag in _RANK_FLAGS:
            if not value.isdigit() or int(value) < 1:
                raise UserError(f"{flag} {value!r} is not possible; allowed: a whole number from 1")
            sizes[_RANK_FLAGS[flag]] = int(value)
    return sizes["tp"] * sizes["pp"]


def assign(cards: int, servers: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """The first GPU of each server, one after the other; empty where we leave it to upstream.

    ``servers``: the flags of each. We leave it where there is no GPU, or where the flags themselves place a server
    (``--base-gpu-id``, ``--device``) or let servers share (``--mem-fraction-static``). Raises :class:`UserError` for
    too few GPUs.
    """
    given = {flag for flags in servers for flag, _ in _pairs(flags)}
    if cards == 0 or given & {"--base-gpu-id", "--device"}:
        return ()
    needed = [cards_needed(flags) for flags in servers]
    if sum(needed) > cards:
        if "--mem-fraction-static" in given:
            return ()
        raise UserError(
            f"{len(needed)} servers need {sum(needed)} GPUs ({' + '.join(map(str, needed))}), and {cards} can be seen; "
            "lower --prefill, --decode or --tp, or let servers share a GPU with -- --mem-fraction-static 0.4"
        )
    return tuple(sum(needed[:i]) for i in range(len(needed)))


def _pairs(flags: Sequence[str]) -> list[tuple[str, str]]:
    out = []
    for i, flag in enumerate(flags):
        if flag.startswith("--"):
            name, _, value = flag.partition("=")
            following = flags[i + 1] if i + 1 < len(flags) else ""
            out.append((name, value or following))
    return out
