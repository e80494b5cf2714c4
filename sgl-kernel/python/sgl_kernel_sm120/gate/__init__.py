"""The compile gate: every kernel configuration that may be launched is compiled for each architecture, with no GPU.

A configuration that would not fit, would spill, or would not use the matrix unit is found here and not on somebody's
card. ``python -m sgl_kernel_sm120.gate NAME`` runs a table of configurations (:mod:`.tables`), prints what each takes
and keeps it in ``sgl-kernel/results/``; a test compares what is kept with the kernels' present source.

| Module | What it knows |
|---|---|
| :mod:`.arch` | what a block and a multiprocessor of each architecture have |
| :mod:`.config` | a kernel with its types, constants and launch; its digest |
| :mod:`.compiler` | compile one configuration and measure it, once |
| :mod:`.verdict` | does what was measured pass |
| :mod:`.tables` | the configurations, by name |
| :mod:`.results` | the kept table: write, read, compare |
"""
