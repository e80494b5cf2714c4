"""The settings that a scheduler rank really runs with, without secrets: flags, environment, transport."""

from __future__ import annotations

import dataclasses
from typing import Any

from sglang_pd import environ
from sglang_pd.doctor.masking import masked

PREFIXES = ("SGLANG_", "UCX_", "NCCL_", "NIXL_")
UCX = "UCX_"


def settings(server_args: Any) -> dict[str, Any]:
    """``flags``: upstream's arguments that are not as by default, as resolution left them. ``environment``: the
    variables with one of :data:`PREFIXES`. Values that are secret by their name are masked."""
    found: dict[str, Any] = masked({"flags": flags(server_args), "environment": environ.starting(PREFIXES)})
    return found


def flags(server_args: Any) -> dict[str, Any]:
    """By the name of the argument, dashes as underscores. ``server_args``: upstream's ``ServerArgs``."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    if not dataclasses.is_dataclass(server_args):
        return {}
    view, found = resolved_view(server_args), {}
    for field in dataclasses.fields(server_args):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        value = getattr(view, field.name, default)
        if value != default and not field.name.startswith("_"):
            found[field.name] = _plain(value)
    return found


def transport(manager: Any) -> dict[str, Any] | None:
    """What carries the KV: NIXL's backends with their parameters, the kinds of memory, and what UCX is told. NIXL does
    not say which of its transports UCX chose. None where the manager has no NIXL agent."""
    agent: Any = getattr(manager, "agent", None)
    backends = getattr(agent, "backends", None)
    if not backends:
        return None
    kinds = getattr(manager.kv_args, "kv_data_mem_kinds", None)
    return {
        "backends": {name: dict(agent.get_backend_params(name)) for name in sorted(backends)},
        # Upstream's where nothing is said.
        "memory": sorted({str(kind) for kind in kinds} if kinds else {"VRAM"}),
        "ucx": environ.starting((UCX,)),
    }


def _plain(value: Any) -> Any:
    """As JSON can have it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value)
