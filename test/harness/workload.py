"""Prompts for comparing token ids, and how they are sent."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness.servers import post

NEW_TOKENS = 24
VOCABULARY = 256
CHUNK = 512
# float32: upstream would take a float32 checkpoint down to float16, where near ties flip with the batch.
FLAGS = ("--chunked-prefill-size", str(CHUNK), "--max-total-tokens", "65536", "--dtype", "float32")


def prompts(count: int, longest: int, seed: int = 7) -> list[list[int]]:
    """Token ids of ``count`` prompts, 1 to ``longest`` tokens; every third one continues an earlier one, so that its
    prefix is in the radix cache by then."""
    random_ = random.Random(seed)
    made: list[list[int]] = [[65], random_.choices(range(VOCABULARY), k=longest)]
    while len(made) < count:
        fresh = random_.choices(range(VOCABULARY), k=random_.choice([2, 7, 63, 64, 65, 200, 900]))
        prefix = random_.choice(made) if len(made) % 3 == 2 else []
        made.append(prefix[: longest - len(fresh)] + fresh)
    return made


PROMPTS = prompts(30, longest=3000)


def generate(url: str, ids: list[int]) -> dict[str, Any]:
    """One greedy completion; ``output_ids`` and ``meta_info`` as upstream's ``/generate`` gives them."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    return post(f"{url}/generate", {"input_ids": ids, "sampling_params": sampling})


def generate_all(url: str, batch: list[list[int]], at_a_time: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda ids: generate(url, ids), batch))
