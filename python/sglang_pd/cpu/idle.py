"""Upstream's scheduler loop on the CPU, when it has nothing to compute."""

from __future__ import annotations

import time
from typing import Any

from sglang_pd.environ import envs

# Far below what a request notices, far above what a look at the queues takes, in seconds.
PAUSE_S = 0.001


def leave_the_core(result: None, scheduler: Any) -> None:
    """AFTER hook on ``Scheduler.on_idle``: while a prefill or decode waits for a transfer, upstream looks at its queues
    without a pause, and takes from the transfer the core that it waits for."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    if not envs.SGLANG_PD_RELIABLE.get() or scheduler.disaggregation_mode == DisaggregationMode.NULL:
        return
    if not scheduler.is_fully_idle():
        time.sleep(PAUSE_S)
