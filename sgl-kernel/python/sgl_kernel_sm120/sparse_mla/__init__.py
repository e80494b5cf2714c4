"""Sparse attention decode for DeepSeek-V4's latent attention, on its FP8 + rope KV.

A row (one token of a request) attends with all its heads to the keys of its sliding window and, in the layers that
compress, to selected keys of a second cache; a key is its own value. Pages and candidates: :mod:`.layout`.

| Module | What it is |
|---|---|
| :mod:`.decode` | the op: both caches in one launch, split over candidates, merged with the sink |
| :mod:`.attend`, :mod:`.merge` | its two kernels |
| :mod:`.split` | among how many programs a row is divided: pure, from shapes, the card and costs |
| :mod:`.calibration` | a card's costs: the table that :mod:`sgl_kernel_sm120.tune` writes |
| :mod:`.launch`, :mod:`.configs` | launch parameters, and all of them for the compile gate |
| :mod:`.reference` | the same in PyTorch, of any precision |
"""
