"""DeepSeek-V4 with our kernels in upstream's pool, indexer and attention.

Every function here that changes upstream is attached by one row of ``sglang_pd/hooks.py``, with its variable on only.

With bf16 index keys (``SGLANG_DSV4_BF16_INDEX_K=1``):

| Module | What it does |
|---|---|
| :mod:`.refusals` | refuses at start-up what bf16 keys cannot be combined with |
| :mod:`.settings` | the launch and the scratch, from the environment |
| :mod:`.pool` | the index-K pool's layout: bytes per token, checks, the tag that PD peers compare |
| :mod:`.sizing` | what every pool allocates, to the byte, and pool sizes that fit a budget |
| :mod:`.store` | stores keys: norm, rope, Hadamard, bf16 |
| :mod:`.query` | prepares queries and head weights |
| :mod:`.indexer` | scores keys and hands the scores on |
| :mod:`.topk` | chooses upstream's top-k |
| :mod:`.hicache` | keeps offloaded pages whole and persisted ones apart from those of other layouts |

Sparse attention on SM120 (``SGLANG_SM120_MMA_TARGET_CTAS``, ``SGLANG_SM120_FLASHMLA_BACKEND=mma``):

| Module | What it does |
|---|---|
| :mod:`.decode`, :mod:`.backend` | attends where it was chosen |
| :mod:`.decode_settings`, :mod:`.decode_refusals`, :mod:`.scratch` | launch, splits; refusals; memory set aside |

Overlap on side streams (``SGLANG_OPT_USE_MULTI_STREAM_OVERLAP``):

| Module | What it does |
|---|---|
| :mod:`.overlap` | which batches overlap, on which streams |
| :mod:`.overlap_settings`, :mod:`.overlap_refusals` | the choice, what is refused |
"""
