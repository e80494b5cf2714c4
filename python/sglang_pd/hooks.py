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

from sglang_pd.environ import envs
from sglang_pd.environ import upstream as upstream_variable
from sglang_pd.upstream import Fingerprint, fingerprint

Kind = Literal["before", "after", "around", "replace", "resolution"]
Where = Literal["always", "cpu", "preload", "dsv4_bf16", "sm120_mma", "dsv4_overlap"]
PIPELINE = "sglang.srt.arg_groups."
DSV4_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool."
DSV4_OURS = "sglang.srt.layers.attention.dsv4_sm120."


@dataclass(frozen=True)
class Hook:
    """One touch point.

    ``target``: dotted path upstream. ``kind``: how we attach; "resolution" wraps the step of upstream's argument
    resolution that ``target`` names. ``ours``: ``module:function`` of ours. ``where``: "always", "cpu"
    (serving without a GPU), "preload" (forked by the preload process of a local cluster), "dsv4_bf16"
    (``SGLANG_DSV4_BF16_INDEX_K`` is on), "sm120_mma" (:func:`sm120_mma`) or "dsv4_overlap" (:func:`dsv4_overlap`).
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
        target="sglang.srt.disaggregation.decode.SchedulerDisaggregationDecodeMixin._verify_kv_checksums",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.verification:compare",
        where="always",
        why="the same: what is in a batch is delivered, and what ended by its deadline must not get in",
        until="the same",
        recorded=Fingerprint("(self, batch: ScheduleBatch)", "17e980da78c3046e"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.SchedulerDisaggregationDecodeMixin._handle_kv_checksum_mismatch",
        kind="before",
        ours="sglang.srt.disaggregation.reliable.verification:mismatched",
        where="always",
        why="a room whose checksum is wrong was counted as delivered when it was cleared",
        until="upstream compares before it clears the room",
        recorded=Fingerprint("(self, req: Req, msg: str)", "0f91f14cb0e518a8"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.SchedulerDisaggregationDecodeMixin.process_decode_queue",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.verification:look_for_lost",
        where="always",
        why="the same for a request that never gets into a batch",
        until="the same",
        recorded=Fingerprint("(self: Scheduler)", "a07faae1305572d2"),
    ),
    Hook(
        target="sglang.srt.disaggregation.checksum.KvChecksumComputer.compute",
        kind="around",
        ours="sglang_pd.cpu.checksum:compute",
        where="cpu",
        why="the checksum of KV is computed by a CUDA kernel alone",
        until="upstream has one for the CPU",
        recorded=Fingerprint(
            "(self, kv_page_indices_gpu: torch.Tensor, state_indices_gpu: Optional[torch.Tensor]=None)",
            "2dbcdc4d1ff175c9",
        ),
    ),
    Hook(
        target="sglang.srt.utils.common.add_prometheus_middleware",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.scrape:serve_readings",
        where="always",
        why="metrics come to a scrape one by one: rooms that started were not those that ended and those that live",
        until="upstream lets a plugin register a collector",
        recorded=Fingerprint("(app)", "172e2bfd6160608e"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodePreallocQueue._ensure_prefill_info",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.bootstrapping:keep_off_the_loop",
        where="always",
        why="HTTP to a bootstrap server on the scheduler's loop: one prefill that hangs stops every request",
        until="upstream asks from a thread",
        recorded=Fingerprint("(self, addr_to_reqs: Dict[str, List[DecodeRequest]])", "f60b6c377f135cb0"),
    ),
    Hook(
        target="sglang.srt.entrypoints.engine.Engine._launch_subprocesses",
        kind="before",
        ours="sglang_pd.ranks:make_folder",
        where="always",
        why="server and schedulers must find each other without the scheduler's loop and without --enable-metrics",
        until="upstream tells plugins of the processes it starts",
        recorded=Fingerprint(
            "(cls, server_args: ServerArgs, init_tokenizer_manager_func: Callable, "
            "run_scheduler_process_func: Callable, run_detokenizer_process_func: Callable, port_args: "
            "Optional[PortArgs]=None, placement_group=None)",
            "ddc69a79b7bdf981",
        ),
    ),
    Hook(
        target="sglang.srt.disaggregation.prefill.PrefillBootstrapQueue._init_kv_manager",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.ready:announce",
        where="always",
        why="/health and /ready are 200 while the threads that carry the KV path are dead",
        until="upstream's readiness asks the KV manager",
        recorded=Fingerprint("(self)", "773ea2284c38edaf"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodePreallocQueue._init_kv_manager",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.ready:announce",
        where="always",
        why="the same on decode",
        until="the same",
        recorded=Fingerprint("(self)", "d2b0ddcc734642ce"),
    ),
    Hook(
        target="sglang.srt.managers.scheduler.Scheduler.ingest_requests",
        kind="before",
        ours="sglang.srt.disaggregation.reliable.ready:loop_turns",
        where="always",
        why="whether a scheduler's loop comes round is known to nobody while it is blocked",
        until="upstream keeps the time of the last round",
        recorded=Fingerprint("(self, stop_at_pause: bool=False)", "599c5b506a238e43"),
    ),
    Hook(
        target="sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        kind="before",
        ours="sglang_pd.ready:serve",
        where="always",
        why="/pd/ready, and /pd/status, rooms and peers: the KV path's state, on the server's own port",
        until="the same",
        recorded=Fingerprint(
            "(server_args: ServerArgs, tokenizer_manager, template_manager, port_args: PortArgs, scheduler_infos: "
            "List[Dict], subprocess_watchdog: Optional[SubprocessWatchdog], execute_warmup_func: "
            "Callable=_execute_server_warmup, launch_callback: Optional[Callable[[], None]]=None)",
            "bdcd86e50f953de0",
        ),
    ),
    Hook(
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager.sigterm_watchdog",
        kind="around",
        ours="sglang_pd.draining:drain",
        where="always",
        why="on SIGTERM it waits for the last request without a bound, and is gone before a gateway noticed",
        until="upstream bounds the wait and answers with 503 what it did not finish",
        recorded=Fingerprint("(self)", "9e4cc58868e94d42"),
    ),
    Hook(
        target="sglang.srt.utils.auth.decide_request_auth",
        kind="around",
        ours="sglang_pd.ready:allow_without_key",
        where="always",
        why="a probe has no key: upstream lets /health and /ready pass without one, and no other path",
        until="upstream lets an endpoint say so itself",
        recorded=Fingerprint(
            "(*, method: str, path: str, authorization_header: Optional[str], api_key: Optional[str], "
            "admin_api_key: Optional[str], auth_level: AuthLevel)",
            "5ab183cd18ad6134",
        ),
    ),
    Hook(
        target="sglang.srt.disaggregation.utils.prepare_abort",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.answers:abort_with_reason",
        where="always",
        why="every failed transfer is a 500 to the client, and its text does not say whether a retry can help",
        until="upstream's KVTransferError carries a status",
        recorded=Fingerprint("(req: Req, error_message: str, status_code=None)", "b8653dcc38941b9c"),
    ),
    Hook(
        target="sglang.srt.entrypoints.http_server.serve_generate_request",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.streams:generate",
        where="always",
        why="a stream whose transfer failed is a 200 without a token, which no gateway retries",
        until="upstream sends the status once the first event is known",
        recorded=Fingerprint("(obj: GenerateReqInput, request: Request)", "ae4b21e10ba56d8c"),
    ),
    Hook(
        target="sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        kind="around",
        ours="sglang.srt.disaggregation.reliable.streams:handle_request",
        where="always",
        why="the same for the OpenAI endpoints",
        until="the same",
        recorded=Fingerprint("(self, request: OpenAIServingRequest, raw_request: Request)", "c318735c5fedff29"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodeTransferQueue._defer_release",
        kind="before",
        ours="sglang.srt.disaggregation.reliable.holding:hold",
        where="always",
        why="pages that prefill may still write to are given to the next request after 30 s, with a warning",
        until="upstream releases them on a proof alone",
        recorded=Fingerprint("(self, decode_req: DecodeRequest)", "79a8d6c2ae63a8be"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodeTransferQueue._do_release",
        kind="before",
        ours="sglang.srt.disaggregation.reliable.holding:release",
        where="always",
        why="the other end of the same hold: counted by what allowed it",
        until="the same",
        recorded=Fingerprint("(self, decode_req: DecodeRequest, idx: int)", "9f26dbd909d8b32a"),
    ),
    Hook(
        target="sglang.srt.disaggregation.decode.DecodeTransferQueue.release_memory_occupation",
        kind="after",
        ours="sglang.srt.disaggregation.reliable.holding:forget",
        where="always",
        why="the pool is torn down with the pages that are held in it",
        until="the same",
        recorded=Fingerprint("(self)", "77226fd4cf20cf44"),
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
        target="sglang.srt.managers.scheduler.Scheduler.on_idle",
        kind="after",
        ours="sglang_pd.cpu.idle:leave_the_core",
        where="cpu",
        why="while a transfer is in flight the scheduler spins, and takes a core from it",
        until="upstream pauses while it only waits for transfers",
        recorded=Fingerprint("(self)", "8ab3f3067c4cc3ab"),
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
    Hook(
        target=PIPELINE + "serving_hook.handle_other_validations",
        kind="resolution",
        ours=DSV4_OURS + "refusals:check_arguments",
        where="dsv4_bf16",
        why="what bf16 index keys cannot be combined with is refused before anything is loaded",
        until="upstream has bf16 index keys",
        recorded=Fingerprint("(server_args: Any)", "23d7e167aa489dfa"),
    ),
    Hook(
        target=DSV4_POOL + "get_dsv4_indexer_bytes_per_token",
        kind="around",
        ours=DSV4_OURS + "pool:bytes_per_token",
        where="dsv4_bf16",
        why="the bytes of an index key, for the pool and for who sizes it; one wrap reaches both",
        until="upstream has bf16 index keys",
        recorded=Fingerprint("(index_head_dim: int, use_fp4_indexer: bool)", "ce6ffc404a1caed6"),
    ),
    Hook(
        target=DSV4_POOL + "DeepSeekV4TokenToKVPool.__init__",
        kind="after",
        ours=DSV4_OURS + "pool:check_pool",
        where="dsv4_bf16",
        why="a pool in another layout than our kernels' must stop the server, not corrupt it",
        until="upstream has bf16 index keys",
        recorded=Fingerprint(
            "(self, max_num_reqs: int, swa_size: int, c4_size: int, c128_size: int, c4_state_pool_size: int, "
            "c128_state_pool_size: int, page_size: int, swa_page_size: int, dtype: torch.dtype, c4_state_dtype: "
            "torch.dtype, c128_state_dtype: torch.dtype, qk_nope_head_dim: int, qk_rope_head_dim: int, "
            "indexer_head_dim: int, layer_num: int, device: str, enable_memory_saver: bool, compression_ratios: "
            "List[int], sliding_window: int=128, start_layer: Optional[int]=None, end_layer: Optional[int]=None, "
            "enable_hisparse: bool=False, online_mtp_max_draft_tokens: int=0, num_req_slots: Optional[int]=None, "
            "unified_fp8: Optional[bool]=None, kv_source_layers: Sequence[int]=(), full_size: Optional[int]=None, "
            "is_draft_worker: bool=False, kv_layout: Union[str, KVLayout]=KVLayout.V4, compressed_kv_layout: "
            "Optional[str]=None)",
            "37c692d276c0d707",
        ),
    ),
    Hook(
        target=DSV4_POOL + "DeepSeekV4TokenToKVPool.pd_kv_layout",
        kind="after",
        ours=DSV4_OURS + "pool:pd_layout",
        where="dsv4_bf16",
        why="a prefill and a decode with different index keys are refused by upstream's comparison of this tag",
        until="upstream has bf16 index keys",
        recorded=Fingerprint("(self)", "b61f12f2a2fa8de1"),
    ),
    Hook(
        target=DSV4_POOL + "DeepSeekV4IndexerPool.set_index_fused",
        kind="around",
        ours=DSV4_OURS + "pool:refuse_scales",
        where="dsv4_bf16",
        why="it writes FP8 keys and scales",
        until="upstream has bf16 index keys",
        recorded=Fingerprint("(self, layer_id: int, loc: torch.Tensor, cache_k: torch.Tensor)", "31f2f3bdfefebc11"),
    ),
    Hook(
        target=DSV4_POOL + "DeepSeekV4IndexerPool.set_index_k_scale_buffer",
        kind="around",
        ours=DSV4_OURS + "pool:refuse_scales",
        where="dsv4_bf16",
        why="it writes FP8 keys and scales",
        until="upstream has bf16 index keys",
        recorded=Fingerprint(
            "(self, layer_id: int, loc: torch.Tensor, index_k: torch.Tensor, index_k_scale: torch.Tensor)",
            "3984b5c2cb48824b",
        ),
    ),
    Hook(
        target=DSV4_POOL + "DeepSeekV4IndexerPool.get_index_k_scale_buffer",
        kind="around",
        ours=DSV4_OURS + "pool:refuse_scales",
        where="dsv4_bf16",
        why="it reads FP8 keys and scales",
        until="upstream has bf16 index keys",
        recorded=Fingerprint(
            "(self, layer_id: int, seq_len_tensor: torch.Tensor, page_indices: torch.Tensor, seq_len_sum: int, "
            "max_seq_len: int)",
            "a468ff553ebaff65",
        ),
    ),
    Hook(
        target="sglang.srt.model_executor.pool_configurator.DSV4PoolConfigurator.calculate_pool_sizes",
        kind="around",
        ours=DSV4_OURS + "sizing:fit",
        where="dsv4_bf16",
        why="pools and the indexer's scratch together fit the budget; upstream leaves out the pages each pool reserves",
        until="upstream prices reserved pages and scratch",
        recorded=Fingerprint("(self, available_bytes: int, page_size: int)", "fd480ebf09e7b886"),
    ),
    Hook(
        target="sglang.kernels.ops.attention.dsv4.compress.compress_norm_rope_store",
        kind="around",
        ours=DSV4_OURS + "store:store",
        where="dsv4_bf16",
        why="index keys are stored in bf16; the latent, which comes the same way, is upstream's",
        until="upstream has bf16 index keys",
        recorded=Fingerprint(
            "(kv: torch.Tensor, plan: Union[CompressorDecodePlan, CompressorPrefillPlan], *, norm_weight: "
            "torch.Tensor, norm_eps: float, freq_cis: torch.Tensor, out_loc: torch.Tensor, kvcache: torch.Tensor, "
            "page_size: int, use_fp4: bool=False, bf16_store: bool=False, kvcache_scale: "
            "Optional[torch.Tensor]=None, rope_cache: Optional[tuple[torch.Tensor, torch.Tensor]]=None, "
            "fp4_k_write_metadata=None, layout: Union[KVLayout, str]=KVLayout.V4, fp8_2buff: bool=False, "
            "kvcache_rope: Optional[torch.Tensor]=None)",
            "22b2ac08ac65850d",
        ),
    ),
    Hook(
        target="sglang.srt.layers.attention.dsv4.indexer.C4Indexer.compute_q",
        kind="around",
        ours=DSV4_OURS + "query:compute_q",
        where="dsv4_bf16",
        why="queries stay bf16",
        until="upstream has bf16 index keys",
        recorded=Fingerprint(
            "(self, q_lora: torch.Tensor, positions: torch.Tensor, weight: torch.Tensor, q_lora_quant=None)",
            "ace066f3c22f77dc",
        ),
    ),
    Hook(
        target="sglang.srt.layers.attention.dsv4.indexer.C4IndexerBackendMixin.forward_c4_indexer",
        kind="around",
        ours=DSV4_OURS + "indexer:forward_c4_indexer",
        where="dsv4_bf16",
        why="it views index-K pages as 132 or 68 bytes per key and calls FP8 or FP4 kernels",
        until="upstream lets a layout bring its logits kernel",
        recorded=Fingerprint(
            "(self, x: torch.Tensor, q_lora: torch.Tensor, c4_indexer: C4Indexer, forward_batch: ForwardBatch, "
            "alt_streams: Optional[List[torch.cuda.Stream]]=None, enable_multi_stream: bool=False, q_lora_ready: "
            "Optional[torch.cuda.Event]=None, skip_compressor: bool=False, q_lora_quant=None)",
            "f151275d99f51cbb",
        ),
    ),
    Hook(
        target="sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler._dsv4_indexer_regions",
        kind="after",
        ours=DSV4_OURS + "hicache:whole_pages",
        where="dsv4_bf16",
        why="HiCache's copy of single tokens knows the main KV's rows only and would scatter a page of index keys",
        until="that copy takes the layout as an argument",
        recorded=Fingerprint("(kvcache: Any, page_size: int)", "af43a77f61a31339"),
    ),
    Hook(
        target="sglang.srt.mem_cache.hicache_storage.HiCacheStorageConfig.__post_init__",
        kind="after",
        ours=DSV4_OURS + "hicache:name_storage",
        where="dsv4_bf16",
        why="keys of persisted pages name the model, not the layout: FP8 pages would be read as bf16",
        until="upstream puts the pool's layout into those keys",
        recorded=Fingerprint("(self)", "ffb9699d750de7c5"),
    ),
    Hook(
        target=PIPELINE + "serving_hook.handle_other_validations",
        kind="resolution",
        ours=DSV4_OURS + "decode_refusals:check_arguments",
        where="sm120_mma",
        why="what our sparse decode cannot be combined with is refused before anything is loaded",
        until="upstream has a split decode kernel for SM120 that takes any batch",
        recorded=Fingerprint("(server_args: Any)", "23d7e167aa489dfa"),
    ),
    Hook(
        target="sglang.kernels.ops.attention.flash_mla_sm120.flash_mla_with_kvcache_sm120",
        kind="around",
        ours=DSV4_OURS + "decode:attend",
        where="sm120_mma",
        why="above 64 rows decode takes FlashInfer's prefill kernel; the fallback reads KV once per head",
        until="the same",
        recorded=Fingerprint("(**kwargs)", "490d6b137df894fa"),
    ),
    Hook(
        target="sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend._forward_attention",
        kind="around",
        ours=DSV4_OURS + "decode:mark_mode",
        where="sm120_mma",
        why="the function above is not told whether its rows are decode's",
        until="the same",
        recorded=Fingerprint(
            "(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: RadixAttention, forward_batch: "
            "ForwardBatch, compress_ratio: Literal[0, 1, 2, 4, 128], save_kv_cache: bool=True, attn_sink: "
            "Optional[torch.Tensor]=None, cos_sin_cache: Optional[torch.Tensor]=None, **_)",
            "f359e8ee3c8c2d05",
        ),
    ),
    Hook(
        target="sglang.srt.models.deepseek_v4.MqaAttentionBase._kernel_num_heads",
        kind="around",
        ours=DSV4_OURS + "decode:native_heads",
        where="sm120_mma",
        why="up to 64 rows queries are padded to 64 heads, which our kernel does not need",
        until="the same",
        recorded=Fingerprint("(self, num_tokens: int)", "8da5b6300b04794d"),
    ),
    Hook(
        target="sglang.srt.model_executor.pool_configurator.DSV4PoolConfigurator.calculate_pool_sizes",
        kind="before",
        ours=DSV4_OURS + "scratch:reserve",
        where="sm120_mma",
        why="the scratch of partial results is not in upstream's budget",
        until="the same",
        recorded=Fingerprint("(self, available_bytes: int, page_size: int)", "fd480ebf09e7b886"),
    ),
    Hook(
        target=PIPELINE + "serving_hook.handle_other_validations",
        kind="resolution",
        ours=DSV4_OURS + "overlap_refusals:check_arguments",
        where="dsv4_overlap",
        why="a GEMM workspace or page buffer that streams share corrupts output; upstream starts all the same",
        until="upstream refuses these, or keeps such memory per stream",
        recorded=Fingerprint("(server_args: Any)", "23d7e167aa489dfa"),
    ),
    Hook(
        target="sglang.srt.models.deepseek_v4.MQALayer.__init__",
        kind="after",
        ours=DSV4_OURS + "overlap:settle",
        where="dsv4_overlap",
        why="overlap is off by default with our kernels; a shared workspace that a checkpoint brings is refused",
        until="the stress test ran on a card, and upstream refuses shared workspaces",
        recorded=Fingerprint(
            "(self, config: DeepSeekV4Config, layer_id: int, quant_config: Optional[QuantizationConfig]=None, prefix: "
            "str='', alt_streams: Optional[List[torch.cuda.Stream]]=None, compress_ratio_override: Optional[int]=None)",
            "4242a709ada8b812",
        ),
    ),
    Hook(
        target="sglang.srt.models.deepseek_v4.DeepseekV4DecoderLayerBase.__init__",
        kind="after",
        ours=DSV4_OURS + "overlap:settle_experts",
        where="dsv4_overlap",
        why="with the variable 0 shared experts still run on a side stream in graphs",
        until="upstream's variable covers them",
        recorded=Fingerprint(
            "(self, config: DeepSeekV4Config, layer_id: int, quant_config: Optional[QuantizationConfig]=None, "
            "moe_quant_config_override: Optional[QuantizationConfig]=None, is_nextn: bool=False, prefix: str='', "
            "alt_streams: Optional[List[torch.cuda.Stream]]=None, compress_ratio_override: Optional[int]=None, "
            "engram_layout: Optional[EngramLayout]=None, hc_stats_stream: Optional[torch.cuda.Stream]=None, "
            "moe_routed_quant_stream: Optional[torch.cuda.Stream]=None, *, boundary_pre_from_prev: "
            "Optional[bool]=None, boundary_mhc_fusions: bool=True)",
            "0c343376b9b16d1d",
        ),
    ),
    Hook(
        target="sglang.srt.models.deepseek_v4.MQALayer._forward_prepare_multi_stream",
        kind="around",
        ours=DSV4_OURS + "overlap:prepare",
        where="dsv4_overlap",
        why="the limit on rows: upstream's is fixed, and prefill graphs have none",
        until="upstream's limit can be set",
        recorded=Fingerprint(
            "(self, x: torch.Tensor, positions: torch.Tensor, forward_batch: ForwardBatch, attn_backend, q_out: "
            "Optional[torch.Tensor]=None, x_quant=None)",
            "7d6d77967792bde5",
        ),
    ),
)


def sm120_mma() -> bool:
    """Whether our sparse decode may attend: its number of thread blocks is set, or it is chosen by name."""
    return envs.SGLANG_SM120_MMA_TARGET_CTAS.is_set() or upstream_variable("SGLANG_SM120_FLASHMLA_BACKEND") == "mma"


def dsv4_overlap() -> bool:
    """Whether we choose if attention overlaps: one of our kernels is on, or the user chose."""
    chosen = upstream_variable("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP") is not None
    return chosen or envs.SGLANG_DSV4_BF16_INDEX_K.get() or sm120_mma()


def selected() -> tuple[Hook, ...]:
    """The rows that belong in this process."""
    from sglang_pd import cpu
    from sglang_pd.cluster import preload

    here = {
        "always": True,
        "cpu": cpu.is_active(),
        "preload": preload.is_active(),
        "dsv4_bf16": envs.SGLANG_DSV4_BF16_INDEX_K.get(),
        "sm120_mma": sm120_mma(),
        "dsv4_overlap": dsv4_overlap(),
    }
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
