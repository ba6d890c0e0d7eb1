# SPDX-License-Identifier: Apache-2.0
"""Where vLLM's releases differ. Everything else here is the same code on 0.26 and 0.32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def is_experts(layer: nn.Module) -> bool:
    """Whether a layer holds the experts of a mixture."""
    from vllm.model_executor.layers import fused_moe

    # 0.26 asks for the method of FusedMoE; later releases split it and ask for RoutedExperts.
    names = ("FusedMoE", "RoutedExperts")
    kinds = tuple(
        kind for name in names if isinstance(kind := getattr(fused_moe, name, None), type)
    )
    return isinstance(layer, kinds)


def cpu_layout(impl: Any, layer: nn.Module) -> str:
    """vLLM's name for how its CPU kernels store a layer's keys and values."""
    return getattr(layer, "isa", None) or impl.isa  # 0.26 has it in the implementation


def allow_matrix_registers() -> None:
    """Asks Linux for the registers of AMX, which vLLM's attention on a CPU takes for granted.

    A process has to ask once, or the first such instruction ends it. oneDNN asks before the first
    dense bfloat16 layer, but where all layers are packed attention comes first.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        torch.cpu._init_amx()  # false where there is no AMX


def multiplies_by_torch(method: Any) -> bool:
    """Whether vLLM's method for a dense weight would call torch's own linear on this platform.

    It may have been told otherwise: to give the same results for any batch, or, since 0.32, to take
    another library (`--linear-backend`).
    """
    from vllm import envs
    from vllm.model_executor.layers.utils import default_unquantized_gemm, dispatch_unquantized_gemm

    if envs.VLLM_BATCH_INVARIANT:
        return False
    chosen = getattr(method, "_gemm_impl", None) or dispatch_unquantized_gemm()
    return chosen is default_unquantized_gemm
