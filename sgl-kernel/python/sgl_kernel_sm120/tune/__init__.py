"""Calibrate the split policy of the sparse decode on a card, and show what it chooses.

python -m sgl_kernel_sm120.tune --out TABLE.json      # on a card: times the kernels, fits the costs, writes the table
python -m sgl_kernel_sm120.tune --show                # no GPU: choices and predicted makespans, with assumed costs
python -m sgl_kernel_sm120.tune --show --table TABLE.json

| Module | What it does |
|---|---|
| :mod:`.fit` | costs from measured times: pure |
| :mod:`.measure` | times of the compiled kernels, on a GPU |
| :mod:`.show` | the policy's choices beside the rules it is compared with: pure |
"""
