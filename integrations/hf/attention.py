# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="unified_max"`: our decode attention in transformers' models.

One new token a sequence goes through `ops.unified_max_decode`, with the phi that the model's config
holds for the layer, or without: the online softmax. Prompts, training and what else it does not do
go through torch's scaled_dot_product_attention, as with "sdpa"; of models that cap their scores,
through transformers' own "eager" attention.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from flashsparse_plugin.attention import LayerReference

logger = logging.getLogger("flashsparse_plugin.attention")

# transformers takes any name with "flash" or "sdpa" in it for one of its own.
NAME = "unified_max"
HEAD_DIMS = (64, 80, 96, 128, 256)
_KEPT = "_unified_max_reference"  # where a layer keeps its own
# What sdpa takes too, and the op does not.
_UNSUPPORTED = ("position_bias", "cache", "s_aux")


def register() -> None:
    """Registers the name; calling it again changes nothing.

    Without a function for masks transformers would make none, and left-padded batches would be
    wrong without a word.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' layers call it.

    Args:
        module: The layer.
        query: [sequences, heads, new tokens, head_dim].
        key: [sequences, kv_heads, positions, head_dim].
        value: As key.
        attention_mask: bool [sequences, 1, new tokens, positions], or None: all positions.
        dropout: As in sdpa.
        scaling: Of scores; head_dim ** -0.5 where there is none.
        **options: What the model passes beside.

    Returns:
        [sequences, new tokens, heads, head_dim], and None in the place of attention weights.

    Raises:
        CalibrationError: For an entry "unified_max" in the model's config that cannot be meant, or
            was made for a model of another size.
    """
    reference = _reference(module, query)
    softcap = options.get("softcap") or 0.0
    if not _is_decode(query, key, value, attention_mask, dropout, options):
        if softcap:  # sdpa would leave it out
            return _eager(module, query, key, value, attention_mask, dropout, scaling, softcap)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    # Here, since transformers imports this file whoever uses it.
    from flashsparse_plugin.ops import ops

    mask = None
    if attention_mask is not None:
        mask = attention_mask[:, 0, 0].expand(query.shape[0], -1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    phi = None if reference is None else reference.phi
    out, recomputed = ops.unified_max_decode(
        query[:, :, 0], key, value, None, mask, scale=scale, phi=phi, softcap=softcap
    )
    if reference is not None and reference.counter is not None:
        reference.counter.add(recomputed)
    return out.unsqueeze(1), None


class _Reference:
    """What a layer's decode steps need of the calibration, where they run.

    Attributes:
        device: Of the query.
        dtype: Of the query.
        phi: float32 [heads] on the device, or None: the online softmax.
        counter: Of the parts that are computed again, where somebody wants to know.
    """

    def __init__(self, module: torch.nn.Module, heads: int, device: torch.device, dtype: Any):
        from flashsparse_plugin.attention import Counter

        self.device, self.dtype = device, dtype
        self.phi = self.counter = None
        found = _calibrated(module, heads, dtype)
        if found is None:
            return
        self.phi = torch.tensor(found.phi, dtype=torch.float32, device=device)
        if Counter.wanted(device):
            self.counter = Counter(f"layer {module.layer_idx}", device)
        if device.type == "cuda":  # a CUDA graph need not copy what stays in its place
            for tensor in (self.phi, *([self.counter.total] if self.counter else [])):
                torch._dynamo.mark_static_address(tensor)
        logger.debug(
            "layer %s: phi from %g to %g for %d heads",
            module.layer_idx, min(found.phi), max(found.phi), heads,
        )  # fmt: skip


def _reference(module: torch.nn.Module, query: Tensor) -> _Reference | None:
    """The layer's, made at its first call: usually a prompt's, before anything is compiled."""
    if getattr(getattr(module, "config", None), "unified_max", None) is None:
        return None
    found = getattr(module, _KEPT, None)
    if found is None or found.device != query.device or found.dtype != query.dtype:
        _keep_reference(module, query.shape[1], query.device, query.dtype)
        found = getattr(module, _KEPT)
    return found


# Run and not traced where the prompt is compiled, too (as one whole graph from torch 2.13 on).
@torch.compiler.assume_constant_result
def _keep_reference(
    module: torch.nn.Module, heads: int, device: torch.device, dtype: torch.dtype
) -> None:
    with torch.inference_mode(False):  # or only inference mode could count
        setattr(module, _KEPT, _Reference(module, heads, device, dtype))


def _calibrated(module: torch.nn.Module, heads: int, dtype: torch.dtype) -> LayerReference | None:
    """What the model's config holds for the layer, or None where that is nothing of use."""
    from flashsparse_plugin.attention import unified_max_of

    entry = unified_max_of(module.config)
    if entry is None:
        return None
    entry.require_layers(module.config.num_hidden_layers)
    found = entry.layer(module.layer_idx, heads)
    runs_in = str(dtype).removeprefix("torch.")
    if not entry.holds_for(runs_in):
        _warn_of_dtype(entry.dtype, runs_in)
        return None
    return found


@functools.cache
def _warn_of_dtype(made_for: str, runs_in: str) -> None:
    logger.warning(
        "phi of this model was chosen for %s and does not fit %s: it runs the online softmax. For "
        "phi: flashsparse calibrate MODEL --text FILE --dtype %s",
        made_for, runs_in, runs_in,
    )  # fmt: skip


def _eager(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    softcap: float,
) -> tuple[Tensor, None]:
    """Gemma 2's own attention with capped scores, which takes a mask to add."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    if mask is None and query.shape[2] > 1:  # left out where causal says it all
        mask = torch.ones(*query.shape[2:3], key.shape[2], dtype=torch.bool, device=key.device)
        mask = mask.tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, lowest
        )
    out, _ = eager_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, softcap=softcap
    )
    return out, None


def _is_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    options: dict[str, Any],
) -> bool:
    dtypes = (torch.float16, torch.bfloat16) + (() if query.is_cuda else (torch.float32,))
    return (
        query.shape[2] == 1
        and query.shape[-1] in HEAD_DIMS
        and value.shape[-1] == query.shape[-1]
        and query.device.type in ("cpu", "cuda")
        and query.dtype in dtypes
        and query.dtype == key.dtype == value.dtype
        and (mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1))
        and dropout == 0
        and not (torch.is_grad_enabled() and query.requires_grad)
        and all(options.get(name) is None for name in _UNSUPPORTED)
    )
