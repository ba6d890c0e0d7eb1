# SPDX-License-Identifier: Apache-2.0
"""Our kernels between products: `additional_config={"flashsparse": {"decode_kernels": "early"}}`.

On Hopper, where they were measured, packed models have them unless it says "default".

Norms, rotary embeddings and gated activations of vLLM are compiled by inductor, or are its own CUDA
kernels. After neither a product gains from programmatic dependent launch, as they signal
launch_dependents at their end or never; ours do at their first instruction (ops/elementwise.py).
They replace those layers by `CustomOp.register_oot`, vLLM's own way for layers of a plugin, and
only in models that have the quantization method of this plugin. Classes are exchanged before a
model is made, and back for the next one: for any other model every class is vLLM's own.

A layer with a property that our kernels lack stays vLLM's. With all others every batch goes through
our kernels, prompts, too: torch.compile makes one graph for batches of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm import envs
from vllm.config import VllmConfig
from vllm.model_executor import custom_op
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import activation, layernorm, rotary_embedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.platforms import current_platform

from flashsparse_plugin.names import DEFAULT, EARLY
from flashsparse_plugin.ops import STATUS, ops
from flashsparse_plugin.ops.elementwise import MAX_NORM_COLUMNS

from .early_begin import HOPPER
from .settings import DECODE_KERNELS, settings_of
from .summary import logger


def use_decode_kernels(vllm_config: VllmConfig, is_packed: bool) -> None:
    """Exchanges vLLM's layers for ours, or back, as the settings say; logs a change.

    Call it before the first of these layers is made.

    Args:
        vllm_config: Of the model that is made.
        is_packed: Whether its products are ours.
    """
    own = EARLY if is_packed and _gain() else DEFAULT
    is_early = settings_of(vllm_config.additional_config).get(DECODE_KERNELS, own) == EARLY
    registry = custom_op.op_registry_oot
    ours = {name: kind for name, kind in registry.items() if issubclass(kind, _Early)}
    if is_early == bool(ours):
        return
    for name in ours:
        del registry[name]
    if not is_early:
        return
    taken = []
    for theirs, kind in _kinds().items():
        if theirs.__name__ in registry:
            taken.append(theirs.__name__)  # by another plugin
            continue
        CustomOp.register_oot(kind, name=theirs.__name__)
        kind.name = theirs.name  # by which `custom_ops` knows it
    logger.info(
        "decode kernels: norms, rotary embeddings and gated activations are flashsparse's, and "
        "products after them use PDL%s; decode_kernels=default has vLLM's",
        f", but for {', '.join(taken)}, which another plugin has" if taken else "",
    )


def _gain() -> bool:
    """Whether a decode step was faster with them on such a GPU: on an H100 and an H200 it was."""
    return STATUS["_C_cuda"].loaded and current_platform.is_device_capability(HOPPER)


def _kinds() -> dict[type, type]:
    """Our class for each of vLLM's."""
    own = {
        layernorm.RMSNorm: _EarlyNorm,
        layernorm.GemmaRMSNorm: _EarlyGemmaNorm,
        activation.SiluAndMul: _EarlyGate,
        activation.GeluAndMul: _EarlyGate,
    }
    for kind in vars(rotary_embedding).values():
        # Those that only compute other cosines and sines.
        if (
            isinstance(kind, type)
            and issubclass(kind, RotaryEmbedding)
            and kind.forward_cuda is RotaryEmbedding.forward_cuda
            and kind.forward_native is RotaryEmbedding.forward_native
        ):
            own[kind] = _EarlyRotary
    return {
        theirs: type(f"Early{theirs.__name__}", (mixin, theirs), {"__doc__": mixin.__doc__})
        for theirs, mixin in own.items()
    }


class _Early:
    """Mixed into a layer of vLLM: our kernel where it supports the layer, or else vLLM's choice."""

    _theirs: Callable[..., Any]

    def dispatch_forward(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        self._theirs = super().dispatch_forward(*args, **kwargs)
        return self._forward_early

    def _forward_early(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _has_kernel(*tensors: Tensor) -> bool:
    """Whether our kernels take these dtypes: one of 16 bits, and on a CPU any."""
    first = tensors[0]
    return all(t.dtype == first.dtype for t in tensors) and (
        first.dtype in (torch.float16, torch.bfloat16) or first.device.type == "cpu"
    )


class _EarlyNorm(_Early):
    """A norm that signals launch_dependents first."""

    _adds_one = False

    def _forward_early(self, x: Tensor, residual: Tensor | None = None) -> Any:
        columns = x.shape[-1]
        if (
            envs.VLLM_BATCH_INVARIANT
            or not getattr(self, "has_weight", True)
            or getattr(self, "variance_size_override", None) is not None
            or not _has_kernel(x, self.weight, *([] if residual is None else [residual]))
            or x.dim() not in (2, 3)
            or columns % 8
            or columns > MAX_NORM_COLUMNS
        ):
            return self._theirs(x, residual)
        weight, epsilon = self.weight.data, self.variance_epsilon
        if residual is None:
            return ops.rms_norm(x, weight, epsilon, self._adds_one)
        return ops.add_rms_norm(x, residual, weight, epsilon, self._adds_one)


class _EarlyGemmaNorm(_EarlyNorm):
    """A norm of Gemma that signals launch_dependents first."""

    _adds_one = True


class _EarlyGate(_Early):
    """A gated activation that signals launch_dependents first."""

    def _forward_early(self, x: Tensor) -> Tensor:
        is_gelu = isinstance(self, activation.GeluAndMul)
        if (
            (is_gelu and self.approximate != "tanh")
            or not _has_kernel(x)
            or x.dim() not in (2, 3)
            or x.shape[-1] % 16
        ):
            return self._theirs(x)
        return ops.gate_mul(x, "gelu_tanh" if is_gelu else "silu")


class _EarlyRotary(_Early):
    """A rotary embedding that signals launch_dependents first."""

    def _forward_early(
        self, positions: Tensor, query: Tensor, key: Tensor | None = None, *args: Any
    ) -> tuple[Tensor, Tensor | None]:
        cos_sin, size = self.cos_sin_cache, self.head_size
        if (
            args
            or key is None
            or not _has_kernel(query, key, cos_sin)
            or cos_sin.device != query.device
            or positions.dim() != 1
            or positions.dtype != torch.int64
            or self.rotary_dim % 16
            or size % 8
        ):
            return self._theirs(positions, query, key, *args)
        tokens = positions.shape[0]
        rotated = ops.rope(
            *(heads.view(tokens, -1, size) for heads in (query, key)),
            *(positions, cos_sin, self.is_neox_style),
        )
        return rotated[0].view(query.shape), rotated[1].view(key.shape)
