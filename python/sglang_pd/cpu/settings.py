"""The settings that upstream needs on a CPU, chosen for the user; explicit flags and variables win."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from sglang_pd import environ

logger = logging.getLogger(__name__)

# Tokens in the KV pool: fits small models beside a second server, and fails with upstream's error where it does not.
MAX_TOTAL_TOKENS = 16384

# Computing threads that wait actively take the cores that the other servers on this machine compute on.
PASSIVE_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}


def apply() -> None:
    """Set the variables that must be there before upstream's modules are imported."""
    environ.set_default("SGLANG_USE_CPU_ENGINE", "1")
    # With more than one rank upstream builds an NCCL communicator for the CPU device and dies; where the library is
    # not found it goes on with gloo.
    environ.set_default("SGLANG_NCCL_SO_PATH", "/nonexistent/nccl-is-not-used-on-cpu")
    # Read when a process loads torch, so it holds in those that this one spawns.
    for name, value in PASSIVE_THREADS.items():
        environ.set_default(name, value)
    if not _has_address():
        environ.set_default("SGLANG_HOST_IP", "127.0.0.1")


def _has_address() -> bool:
    """Whether upstream would find an address of this host: a routed interface, or a host name that resolves.

    Connecting a UDP socket sends nothing; it asks the kernel for the source address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("8.8.8.8", 80))
            return True
    except OSError:
        pass
    try:
        return not socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return False


def flag_defaults(args: Any) -> dict[str, Any]:
    """Upstream flags to set for a CPU server: those of ours that the user did not give.

    ``args`` is upstream's raw ``ServerArgs``, in which a flag that was not given still has upstream's default.
    """
    wanted: dict[str, Any] = {"attention_backend": "torch_native", "max_total_tokens": MAX_TOTAL_TOKENS}
    # An idle scheduler polls its queues without a pause, and here it would take that core from the other servers.
    wanted["sleep_on_idle"] = True
    if args.disaggregation_mode == "decode":
        # The inferred backend is a pinned host pool, which asks for cudart.
        wanted["disaggregation_decode_retraction_backup"] = "cpu_tensor"
    return {name: value for name, value in wanted.items() if getattr(args, name) in (None, False)}


def _as_flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def thread_binding(ranks: int, cores: list[int]) -> str:
    """Cores for each rank in upstream's syntax (``"0,1|2,3"``): an equal share, or all ranks on all cores when the
    ranks outnumber the cores."""
    if ranks > len(cores):
        return "|".join([",".join(map(str, cores))] * ranks)
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


def resolve_cpu_backends(server_args: Any, previous: Any) -> None:
    """Upstream's resolution step ``handle_cpu_backends`` with our defaults before it.

    Args: ``server_args``, the record under resolution; ``previous``, the step that this one wraps.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    if resolving_view(server_args).device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        defaults = flag_defaults(server_args)
        declare_resolution(server_args, "sglang_pd.cpu", **defaults)
        said = [_as_flag(name, value) for name, value in defaults.items()]
        ranks = server_args.tp_size * server_args.pp_size * server_args.dp_size
        if ranks > 1:
            binding = thread_binding(ranks, cores)
            if environ.set_default("SGLANG_CPU_OMP_THREADS_BIND", binding):
                said.append(f"SGLANG_CPU_OMP_THREADS_BIND={binding}")
        logger.info("No GPU here: serving on the CPU with %s. Explicit flags win.", " ".join(said) or "your flags")
    previous(server_args)
