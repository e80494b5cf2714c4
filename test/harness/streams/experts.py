"""Upstream's shared experts on their side stream: its function that forks, with projections in the experts' places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

EXPERTS = 8


class Experts:
    """What ``DeepseekV2MoE.forward_normal_dual_stream`` reads of the object it belongs to."""

    def __init__(self, hidden: int, alt_stream: Any):
        random = torch.Generator().manual_seed(0)
        shapes = {"router": (EXPERTS, hidden), "shared_up": (64, hidden), "shared_down": (hidden, 64)}
        self.weights = {name: torch.randn(shape, generator=random).bfloat16() for name, shape in shapes.items()}
        self.weights["routed"] = torch.randn((hidden, hidden), generator=random).bfloat16()
        self.alt_stream = alt_stream
        self.routed_quant_stream = None
        self.num_fused_shared_experts = 0
        self.routed_scaling_factor = 1.0
        self.is_hash = self._shared_expert_tp1 = self.reduce_results = False
        self.shared_experts = lambda x, **_: self.shared(x)
        self.experts = _Routed(self.weights["routed"])

    def gate(self, x: torch.Tensor, allocator: Any) -> torch.Tensor:
        return x @ self.weights["router"].T

    def topk(self, x: torch.Tensor, router: torch.Tensor) -> Any:
        weights, chosen = router.float().softmax(-1).topk(2)
        return SimpleNamespace(weights=weights, chosen=chosen, format=None)

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weights["shared_up"].T) @ self.weights["shared_down"].T

    def _maybe_quant_moe_input_once(self, x: torch.Tensor) -> None:
        return None

    def _should_quant_routed_input_mxfp8(self, x: torch.Tensor) -> bool:
        return False

    def _forward_shared_experts(self, x: torch.Tensor, allocator: Any, pre_quant_input: Any = None) -> torch.Tensor:
        return self.shared(x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from sglang.srt.models.deepseek_v2 import DeepseekV2MoE

        return DeepseekV2MoE.forward_normal_dual_stream(self, x)


class _Routed:
    supports_deferred_finalize = False
    quant_method = None
    should_fuse_routed_scaling_factor_in_topk = True

    def __init__(self, weight: torch.Tensor):
        self.weight = weight
        self.moe_runner_config = SimpleNamespace(inplace=False, routed_scaling_factor=None)

    def __call__(self, x: torch.Tensor, chosen: Any) -> torch.Tensor:
        return (x @ self.weight) * chosen.weights.sum(-1, keepdim=True).to(x.dtype)
