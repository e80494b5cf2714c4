"""A batch through the layers of :mod:`harness.dsv4.layer`, beside :mod:`harness.dsv4.exact_layer`."""

from __future__ import annotations

from typing import Any

import torch

from harness.dsv4 import exact_layer
from harness.dsv4.layer import RATIOS, Layers, Tokens, on_sm120

# Tokens that requests have before the batch that is looked at, and get in it. Request 0 has more compressed keys than
# are chosen; decode takes it over a page's end at 2048, request 1 at 256, and request 3 to its first key of 128 tokens.
BEFORE, EXTEND = [2042, 250, 0, 126], [3, 2, 5, 1]
DECODES = [[0, 1, 2, 3]] * 4 + [[2, 0, 1]] * 2


def run(seed: int = 0) -> list[dict[str, Any]]:
    """One row per token and layer: ``step``, ``ratio``, ``length``, largest ``error`` and ``size`` of the output, and where the
    indexer had to choose ``regret``: by how much it left a better key out, in standard deviations of the scores."""
    with on_sm120():
        return _run(Layers(seed), torch.Generator().manual_seed(seed))


def _run(layers: Layers, random: torch.Generator) -> list[dict[str, Any]]:
    history = [[Tokens.random(0, random) for _ in BEFORE] for _ in RATIOS]
    found: list[dict[str, Any]] = []

    def step(name: str, mode: str, requests: list[int], counts: list[int], attend: bool = True) -> None:
        before = [len(history[0][request].x) for request in requests]
        given = [[Tokens.random(count, random) for count in counts] for _ in RATIOS]
        outputs, chosen = layers.forward(mode, requests, before, given, attend)
        for layer, parts in enumerate(given):
            for request, part in zip(requests, parts, strict=True):
                old = history[layer][request]
                history[layer][request] = Tokens(
                    *(torch.cat([getattr(old, name), getattr(part, name)]) for name in ("x", "q_lora", "q", "k"))
                )
        if not attend:
            return
        for layer, ratio in enumerate(RATIOS):
            row = 0
            for request, old, count in zip(requests, before, counts, strict=True):
                for length in range(old + 1, old + count + 1):
                    picked = chosen[row] if ratio == 4 else None
                    part = history[layer][request].part(slice(length))
                    exact, regret = _exact(layers, layer, ratio, part, picked)
                    out = outputs[layer][row].double()
                    error = (out - exact).abs().max().item()
                    size = exact.abs().max().item()
                    found.append(
                        {"step": name, "ratio": ratio, "length": length, "error": error, "size": size, "regret": regret}
                    )
                    row += 1

    had = [request for request, count in enumerate(BEFORE) if count]
    step("before", "EXTEND", had, [BEFORE[request] for request in had], attend=False)
    step("extend", "EXTEND", list(range(len(BEFORE))), EXTEND)
    for number, requests in enumerate(DECODES):
        step(f"decode {number}", "DECODE", requests, [1] * len(requests))
    return found


@torch.no_grad()
def _exact(
    layers: Layers, layer: int, ratio: int, tokens: Tokens, picked: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    """The last token's output, and the regret of the keys that were picked (0 where all are)."""
    window = exact_layer.stored(tokens.k[-exact_layer.WINDOW :].double())
    regret, keys = 0.0, window
    if ratio:
        selected = exact_layer.stored(exact_layer.compressed(layers.compressors[ratio], tokens.x))
        if picked is not None:
            places = picked[picked >= 0]
            expected = min(len(selected), exact_layer.TOP_K)
            if len(places) != expected or len(set(places.tolist())) != expected:
                raise AssertionError(f"{len(set(places.tolist()))} keys of {len(selected)} were chosen, not {expected}")
            if expected < len(selected):
                position = len(tokens.x) - 1
                scores = exact_layer.index_scores(layers.indexer, tokens.x, tokens.q_lora[-1], position)
                left = torch.ones(len(scores), dtype=torch.bool)
                left[places] = False
                regret = max(0.0, ((scores[left].max() - scores[places].min()) / scores.std()).item())
            selected = selected[places]
        keys = torch.cat([window, selected])
    return exact_layer.attention(tokens.q[-1], keys, layers.sinks[layer]), regret
