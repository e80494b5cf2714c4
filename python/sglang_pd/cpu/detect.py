"""Whether this process should serve on the CPU: what is seen of the machine, and the decision, apart."""

from __future__ import annotations

import glob
from dataclasses import dataclass

# Device nodes that a driver makes only for a compute accelerator (a display adapter alone makes /dev/dri, not these).
DEVICE_NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/kfd", "/dev/davinci[0-9]*", "/dev/accel/accel[0-9]*")


@dataclass(frozen=True)
class Machine:
    """``usable``: the accelerator that torch can use, or None. ``nodes``: accelerator device nodes that exist."""

    usable: str | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    use_cpu: bool
    refusal: str | None = None


def look() -> Machine:
    """See this machine. Starts no driver context: ``is_available`` only asks."""
    import torch

    usable = None
    for name in ("cuda", "xpu", "npu", "hpu", "musa", "mps"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            usable = name
            break
    nodes = sorted(node for pattern in DEVICE_NODES for node in glob.glob(pattern))
    return Machine(usable, tuple(nodes))


def decide(machine: Machine, cpu_engine: str | None, platform: str | None, enabled: bool) -> Decision:
    """``cpu_engine`` is ``SGLANG_USE_CPU_ENGINE`` and ``platform`` ``SGLANG_PLATFORM``, None where not set.

    An explicit choice of the user's wins; without one the CPU serves only where no accelerator exists.
    """
    if not enabled or platform:
        return Decision(False)
    if cpu_engine is not None:
        return Decision(cpu_engine == "1")
    if machine.usable:
        return Decision(False)
    if machine.nodes:
        return Decision(
            False,
            f"this machine has an accelerator ({', '.join(machine.nodes)}) that torch cannot use: check the driver, "
            "CUDA_VISIBLE_DEVICES and the torch build; to serve from the CPU all the same, set SGLANG_USE_CPU_ENGINE=1",
        )
    return Decision(True)
