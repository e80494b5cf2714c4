"""The one table of upstream touch points: what of upstream we change, why, and when it can go.

A row is attached through upstream's own extension points, ``HookRegistry`` or ``register_resolution_hook``. Each row
carries the signature and source digest of its target in the pinned version; ``python -m sglang_pd.hooks`` prints them
as they are now, for the upgrade to a new upstream.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sglang_pd.upstream import Fingerprint, fingerprint

Kind = Literal["before", "after", "around", "replace", "resolution"]
Where = Literal["always", "cpu", "preload"]
PIPELINE = "sglang.srt.arg_groups."


@dataclass(frozen=True)
class Hook:
    """One touch point.

    ``target``: dotted path upstream. ``kind``: how we attach; "resolution" wraps the step of upstream's argument
    resolution that ``target`` names. ``ours``: ``module:function`` of ours. ``where``: "always", "cpu"
    (serving without a GPU) or "preload" (forked by the preload process of a local cluster).
    """

    target: str
    kind: Kind
    ours: str
    where: Where
    why: str
    until: str
    recorded: Fingerprint

    def load(self) -> Callable[..., Any]:
        module, _, name = self.ours.partition(":")
        return getattr(importlib.import_module(module), name)


HOOKS: tuple[Hook, ...] = (
    Hook(
        target=PIPELINE + "platform_hook.handle_hardware_runtime_validation",
        kind="resolution",
        ours="sglang_pd.startup:verify_before_resolution",
        where="always",
        why="load_plugins and apply_hooks swallow errors: the launcher refuses to start unless every hook here is live",
        until="upstream can be told to fail on a plugin error",
        recorded=Fingerprint("(server_args: Any)", "c9ac1d27b1b8557d"),
    ),
    Hook(
        target=PIPELINE + "model_path_hook.handle_model_source_paths",
        kind="resolution",
        ours="sglang_pd.preflight:check_input",
        where="always",
        why="a model folder that does not exist is reported as a malformed repository name",
        until="upstream names the folder",
        recorded=Fingerprint("(server_args: Any)", "a7aff8afdfc91320"),
    ),
    Hook(
        target="sglang.srt.entrypoints.http_server.launch_server",
        kind="before",
        ours="sglang_pd.preflight:check_ports",
        where="always",
        why="a taken HTTP port hangs the server once loaded; a taken bootstrap port leaves a prefill healthy but deaf",
        until="upstream binds its ports before it loads the model, and fails where it cannot",
        recorded=Fingerprint(
            "(server_args: ServerArgs, init_tokenizer_manager_func: Callable=init_tokenizer_manager, "
            "run_scheduler_process_func: Callable=run_scheduler_process, "
            "run_detokenizer_process_func: Callable=run_detokenizer_process, "
            "execute_warmup_func: Callable=_execute_server_warmup, launch_callback: Optional[Callable[[], "
            "None]]=None)",
            "830a6d246640c7c7",
        ),
    ),
    Hook(
        target="sglang.srt.runtime_context.publish",
        kind="before",
        ours="sglang_pd.startup:verify_before_publish",
        where="always",
        why="the same check in each process a server spawns, which resolves no arguments of its own",
        until="upstream can be told to fail on a plugin error",
        recorded=Fingerprint(
            "(server_args, *, role: str, hf_config: Any=None, ranks: SpawnRanks | None=None)", "8ab925bf52753622"
        ),
    ),
    Hook(
        target=PIPELINE + "platform_hook.handle_cpu_backends",
        kind="resolution",
        ours="sglang_pd.cpu.settings:resolve_cpu_backends",
        where="cpu",
        why="defaults that let a CPU serve: PyTorch attention, a bounded KV pool, no cudart in retraction",
        until="upstream chooses defaults that work without AMX and without a GPU",
        recorded=Fingerprint("(server_args: Any)", "f1c1e74c64fc2406"),
    ),
    Hook(
        target="sglang.srt.disaggregation.nixl.conn.NixlKVManager.__init__",
        kind="before",
        ours="sglang.srt.disaggregation.reliable.host:prepare",
        where="cpu",
        why="KV in host memory is registered with NIXL as VRAM, which fails; its progress thread takes a core",
        until="upstream derives the memory kind from the buffers' device",
        recorded=Fingerprint(
            "(self, args: KVArgs, disaggregation_mode: DisaggregationMode, server_args: ServerArgs, "
            "is_mla_backend: Optional[bool]=False)",
            "02ee4cd8e318f5c5",
        ),
    ),
    Hook(
        target="sglang.srt.disaggregation.utils.get_kv_class",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.registry:choose_kv_class",
        where="always",
        why="over NIXL upstream loses failures silently, and one bad frame or hung peer stops other peers' requests",
        until="upstream lets a plugin register classes for a transfer backend",
        recorded=Fingerprint("(transfer_backend: TransferBackend, class_type: KVClassType)", "7a83a11c8e9c5e1c"),
    ),
    Hook(
        target="sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.create_sender",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.naming:name_prefill_room",
        where="always",
        why="a transfer knows its room, not its request; the line of a failed room names both",
        until="upstream passes the request id to the sender",
        recorded=Fingerprint("(self, req: Req, num_kv_heads: int)", "4856556987d5c5cc"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodePreallocQueue._create_receiver_and_enqueue",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.naming:name_decode_room",
        where="always",
        why="the same on decode",
        until="upstream passes the request id to the receiver",
        recorded=Fingerprint("(self, req: Req, is_rebootstrap: bool=False)", "2507395f55c65c0d"),
    ),
    Hook(
        target="sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.maybe_send_cached_prefix_chunk",
        kind="around",
        ours="sglang_pd.cpu.prefill:send_cached_prefix_chunk",
        where="cpu",
        why="the early send of a cached prefix records a CUDA event: the first prefix hit kills the scheduler",
        until="upstream takes the event class from the device module",
        recorded=Fingerprint("(self: Scheduler, req: Req, allow_send: bool=True)", "952d25d7c45c05f4"),
    ),
    Hook(
        target="sglang.srt.entrypoints.engine._set_envs_and_config",
        kind="after",
        ours="sglang_pd.cluster.preload:fork_helpers",
        where="preload",
        why="it forces the start method spawn, with which scheduler and detokenizer import everything again",
        until="upstream lets the caller choose the start method",
        recorded=Fingerprint("(server_args: ServerArgs)", "a64d556edd8cda14"),
    ),
)


def selected() -> tuple[Hook, ...]:
    """The rows that belong in this process."""
    from sglang_pd import cpu
    from sglang_pd.cluster import preload

    here = {"always": True, "cpu": cpu.is_active(), "preload": preload.is_active()}
    return tuple(hook for hook in HOOKS if here[hook.where])


def attach(hooks: tuple[Hook, ...]) -> None:
    """Hand every row to upstream's registries; upstream applies them after all plugins have run."""
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        if hook.kind == "resolution":
            register_resolution_hook(hook.target.rpartition(".")[2])(hook.load())
        else:
            HookRegistry.register(hook.target, hook.load(), HookType(hook.kind))


def not_live(hooks: tuple[Hook, ...]) -> dict[str, str]:
    """The rows that did not take in this process, by target, each with the reason."""
    out = {}
    for hook in hooks:
        reason = _why_not_live(hook)
        if reason:
            out[hook.target] = reason
    return out


def _why_not_live(hook: Hook) -> str | None:
    ours = hook.load()
    if hook.kind == "resolution":
        from sglang.srt.arg_groups.resolution_hooks import _HOOKS

        step = hook.target.rpartition(".")[2]
        return None if ours in _HOOKS.get(step, ()) else f"{hook.ours} is not registered for the step {step}"
    try:
        current = _resolve(hook.target)
    except (ImportError, AttributeError) as error:
        return f"it does not resolve: {error}"
    while current is not None:
        if current is ours or ours in _closure(current):
            return None
        current = getattr(current, "__wrapped__", None)
    return f"{hook.ours} is not attached to it"


def _resolve(target: str) -> Any:
    import pkgutil

    owner, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(owner), name)


def _closure(function: Any) -> list[Any]:
    cells = getattr(function, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells]


if __name__ == "__main__":
    for row in HOOKS:
        print(row.target, fingerprint(row.target))
