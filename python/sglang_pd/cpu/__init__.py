"""What upstream lacks to serve on a machine without a GPU.

:func:`activate` is our entry point in upstream's group ``sglang.srt.platforms``. Upstream calls it in every process,
launcher and spawned alike, before anything imports ``sgl_kernel`` and before the platform is chosen.
"""

from __future__ import annotations

import sys

from sglang_pd import environ
from sglang_pd.cpu.detect import decide, look

_active = False


def activate() -> None:
    """Prepare this process to serve on the CPU where there is no GPU; do nothing where there is one.

    Always returns None, which leaves the choice of the platform to upstream: with ``SGLANG_USE_CPU_ENGINE=1`` it takes
    its own CPU platform. Exits where a GPU is present but unusable: to serve such a machine from its CPU would be a
    silent thousandfold slow-down.
    """
    global _active
    if _active:
        return
    try:
        enabled = environ.envs.SGLANG_PD_CPU_PLATFORM.get()
    except environ.EnvError as error:
        sys.exit(f"sglang-pd: {error}")
    decision = decide(look(), environ.upstream("SGLANG_USE_CPU_ENGINE"), environ.upstream("SGLANG_PLATFORM"), enabled)
    if decision.refusal:
        sys.exit(f"sglang-pd: {decision.refusal}")
    if not decision.use_cpu:
        return
    _active = True
    from sglang_pd.cpu import kernels, settings

    settings.apply()
    kernels.install()


def is_active() -> bool:
    """Whether this process serves on the CPU through us."""
    return _active
