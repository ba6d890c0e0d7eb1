# SPDX-License-Identifier: Apache-2.0
"""Differences between vLLM's releases; all other code here is the same from 0.26 to 0.33."""

from __future__ import annotations

import functools
import re
from importlib.metadata import version
from typing import Any, Final

import torch
from torch import nn

TESTED: Final = ((0, 26), (0, 32))
"""The oldest and the newest release that the tests were run with."""


@functools.cache  # asked for each layer
def release() -> tuple[int, int]:
    """Which vLLM this is; (0, 0) for one that was built from source without a version."""
    return _release(version("vllm")) or (0, 0)


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def about_release(version: str) -> str | None:
    """What to tell users of a release of vLLM that was not tested; None for any in between.

    vLLM has a release every few weeks, most of which change nothing for a plugin. So none is
    refused, and pip may install any.
    """
    found = _release(version)
    if found is None or TESTED[0] <= found <= TESTED[1]:
        return None
    oldest, newest = ("{}.{}".format(*release) for release in TESTED)
    return (
        f"flashsparse is tested with vLLM {oldest} to {newest}, this is {version}. "
        f"If anything fails, try again with `pip install 'vllm=={newest}.*'`"
    )


def is_experts(layer: nn.Module) -> bool:
    """Whether a layer holds the experts of a mixture."""
    # 0.26 asks for the method of FusedMoE; later releases split that and ask for RoutedExperts.
    return _is_of_mixtures(layer, "FusedMoE", "RoutedExperts")


def is_router(layer: nn.Module) -> bool:
    """Whether a layer is of the class for routers, which some releases have for some models."""
    return _is_of_mixtures(layer, "GateLinear")


def _is_of_mixtures(layer: nn.Module, *names: str) -> bool:
    """Whether a layer is of one of these classes, as far as vLLM has them as classes."""
    from vllm.model_executor.layers import fused_moe

    kinds = tuple(
        kind for name in names if isinstance(kind := getattr(fused_moe, name, None), type)
    )
    return isinstance(layer, kinds)


def cpu_layout(impl: Any, layer: nn.Module) -> str:
    """vLLM's name for how its CPU kernels store a layer's keys and values."""
    return getattr(layer, "isa", None) or impl.isa  # 0.26 has the name in the implementation


def allow_matrix_registers() -> None:
    """Requests the AMX registers from Linux, which vLLM's attention on a CPU assumes are enabled.

    A process has to request them once, or its first AMX instruction kills it. oneDNN does so before
    the first dense bfloat16 layer, but if all layers are packed, attention runs first.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        torch.cpu._init_amx()  # false if there is no AMX


def multiplies_by_torch(method: Any) -> bool:
    """Whether vLLM's method for a dense weight would call torch's own linear on this platform.

    Batch invariance and, since 0.32, another library (`--linear-backend`) replace it.
    """
    from vllm import envs
    from vllm.model_executor.layers.utils import default_unquantized_gemm, dispatch_unquantized_gemm

    if envs.VLLM_BATCH_INVARIANT:
        return False
    chosen = getattr(method, "_gemm_impl", None) or dispatch_unquantized_gemm()
    return chosen is default_unquantized_gemm
