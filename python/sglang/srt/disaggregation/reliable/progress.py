"""NIXL's own threads: the one that drives transfers in the background, and its workers."""

from __future__ import annotations

from typing import Any

from sglang_pd import environ

# NIXL 1.5.1's Python binding fixes the delay at 0, and the thread then spins: a core per agent, idle or not. With any
# delay it waits for events instead (measured idle: 0.07 s of CPU in 3 s, against 2.98 s).
DELAY_US = 1000


def wait_for_events(delay_us: int = DELAY_US) -> None:
    """Have the progress threads of all agents made from now on in this process wait for events, at most ``delay_us``
    microseconds at a time. Raises ``AttributeError`` where the binding is not the one this was written for."""
    from nixl_cu13 import _api

    binding = _api.nixlBind
    base: Any = binding.nixlAgentConfig
    if base.__name__ == "PatientConfig":
        return

    class PatientConfig(base):
        """The binding writes 0 to ``pthrDelay`` after it made the configuration; the delay stays what it is here."""

        pthrDelay = property(base.pthrDelay.__get__, lambda self, value: base.pthrDelay.__set__(self, delay_us))

    binding.nixlAgentConfig = PatientConfig


def use_few_workers() -> None:
    """Have NIXL use two worker threads, from 16 descriptors on, where the user chose nothing.

    Upstream gives prefill 8, each with a connection of its own to every decode. Without them, 16 rooms of 64 pages over
    TCP went twice as fast on two cores; with two, scattered pages over shared memory did better than with none or one.
    NIXL itself gives a worker no less than 1024 descriptors: what is below is copied by the thread that posts, which
    holds up everything else that prefill does. With 16, rooms of one page went 1.2 to 1.4 times as fast, and adjacent
    pages, which are few descriptors, 1.6 times over shared memory.
    """
    environ.set_default("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", '{"num_threads": "2", "split_batch_size": "16"}')
