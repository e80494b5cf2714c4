"""The settings that a scheduler rank really runs with, without secrets: flags, environment, transport."""

from __future__ import annotations

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
    """By the name of the argument, dashes as underscores. ``server_args``: upstream's ``ServerArgs``, None for none."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    names = getattr(server_args, "__struct_fields__", ())
    if not names:
        return {}
    # The model has no default.
    view, default = resolved_view(server_args), type(server_args)(model_path=None)
    values = {name: getattr(view, name) for name in names if not name.startswith("_")}
    return {name: _plain(value) for name, value in values.items() if value != getattr(default, name)}


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
