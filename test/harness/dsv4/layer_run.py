"""A batch through the layers of :mod:`harness.dsv4.layer`, beside :mod:`harness.dsv4.exact_layer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from harness.dsv4 import exact_layer
from harness.dsv4.layer import RATIOS, Layers, Tokens, on_sm120

# Tokens that requests have before the batch that is looked at, and get in it. Request 0 has more compressed keys than
# are chosen; decode takes it over a page's end at 2304, request 1 at 256, and request 3 to its first key of 128 tokens.
BEFORE, EXTEND = [2301, 254, 0, 126], [2, 1, 3, 1]
DECODES = [[0, 1, 2, 3], [0, 1, 2, 3], [2, 0]]


@dataclass
class Seen:
    """What the layers gave for a token: ``out`` ``[HEADS, 512]``; ``chosen``: positions of C4's keys, -1 beyond."""

    step: str
    layer: int
    request: int
    length: int
    out: torch.Tensor
    chosen: torch.Tensor


@dataclass
class Run:
    layers: Layers
    random: torch.Generator
    history: list[list[Tokens]] = field(init=False)
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = [[Tokens.random(0, self.random) for _ in BEFORE] for _ in RATIOS]

    def step(self, name: str, mode: str, requests: list[int], counts: list[int], attend: bool = True) -> None:
        before = [len(self.history[0][request].x) for request in requests]
        given = [[Tokens.random(count, self.random) for count in counts] for _ in RATIOS]
        outputs, chosen = self.layers.forward(mode, requests, before, given, attend)
        for layer, parts in enumerate(given):
            row = 0
            for request, old, part in zip(requests, before, parts, strict=True):
                self.history[layer][request] = self.history[layer][request].with_more(part)
                for length in range(old + 1, old + len(part.x) + 1):
                    if attend:
                        self.seen.append(Seen(name, layer, request, length, outputs[layer][row], chosen[row]))
                    row += 1


def run(seed: int = 0) -> list[dict[str, Any]]:
    """One row per token and layer: ``step``, ``ratio``, ``length``; ``excess``, by how much an output differs from the
    exact one beyond the rounding to bf16; ``one_less``, what that would be with one key of the window less; where the
    indexer had to choose, ``choosing``, and ``regret``: by how much it left a better key out, in standard deviations of
    the scores."""
    with on_sm120(), torch.no_grad():
        one = Run(Layers(seed), torch.Generator().manual_seed(seed))
        had = [request for request, count in enumerate(BEFORE) if count]
        one.step("before", "EXTEND", had, [BEFORE[request] for request in had], attend=False)
        one.step("extend", "EXTEND", list(range(len(BEFORE))), EXTEND)
        for number, requests in enumerate(DECODES):
            one.step(f"decode {number}", "DECODE", requests, [1] * len(requests))
        return _compared(one)


def _compared(one: Run) -> list[dict[str, Any]]:
    layers, found = one.layers, []
    # A key depends on the tokens up to its block's end only, so that all of a sequence are computed once.
    keys = {
        (layer, request): exact_layer.stored(exact_layer.compressed(layers.compressors[ratio], tokens.x))
        for layer, ratio in enumerate(RATIOS)
        if ratio
        for request, tokens in enumerate(one.history[layer])
    }
    index_keys = [exact_layer.index_keys(layers.indexer, tokens.x) for tokens in one.history[RATIOS.index(4)]]
    for seen in one.seen:
        ratio, tokens = RATIOS[seen.layer], one.history[seen.layer][seen.request]
        attended = [exact_layer.stored(tokens.k[max(0, seen.length - exact_layer.WINDOW) : seen.length].double())]
        choosing, regret = False, 0.0
        if ratio:
            selected = keys[seen.layer, seen.request][: seen.length // ratio]
            if ratio == 4:
                known = index_keys[seen.request][: seen.length // 4]
                at = seen.length - 1
                scores = exact_layer.index_scores(layers.indexer, known, tokens.x[at], tokens.q_lora[at], at)
                places, regret = _checked(seen.chosen, scores)
                choosing = len(places) < len(scores)
                selected = selected[places]
            attended.append(selected)
        q, sink = tokens.q[seen.length - 1], layers.sinks[seen.layer]
        found.append(
            {
                "step": seen.step,
                "ratio": ratio,
                "length": seen.length,
                "excess": _excess(seen.out, exact_layer.attention(q, torch.cat(attended), sink)),
                "one_less": _excess(seen.out, exact_layer.attention(q, torch.cat(attended)[1:], sink)),
                "choosing": choosing,
                "regret": regret,
            }
        )
    return found


def _excess(out: torch.Tensor, exact: torch.Tensor) -> float:
    return ((out.double() - exact).abs() - exact.abs() * 2**-8).max().item()


def _checked(chosen: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The keys that were chosen, which must be as many as there can be, and the regret."""
    places = chosen[chosen >= 0]
    expected = min(len(scores), exact_layer.TOP_K)
    if len(places) != expected or len(set(places.tolist())) != expected or (places >= len(scores)).any():
        raise AssertionError(f"of {len(scores)} keys {expected} must be chosen, not {sorted(places.tolist())}")
    if expected == len(scores):
        return places, 0.0
    left = torch.ones(len(scores), dtype=torch.bool)
    left[places] = False
    return places, max(0.0, ((scores[left].max() - scores[places].min()) / scores.std()).item())
