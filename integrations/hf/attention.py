# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="unified_max"`: our decode attention in transformers' models.

Steps with one new token a sequence use `ops.unified_max_decode`, with the layer's phi in the
model's config or, without one, the online softmax. Prompts, training and everything else that the
op does not support use torch's scaled_dot_product_attention, as with "sdpa", or, in models with a
softcap or sinks, transformers' own "eager" attention.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from flashsparse_plugin.wrapping import wrap_once

if TYPE_CHECKING:
    from flashsparse_plugin.attention import LayerReference

logger = logging.getLogger("flashsparse_plugin.attention")

# transformers treats any name that contains "flash" or "sdpa" as one of its own.
NAME = "unified_max"
HEAD_DIMS = (64, 80, 96, 128, 256)
_KEPT = "_unified_max_reference"  # the attribute in which a layer keeps its own
# Options that sdpa supports and the op does not.
_UNSUPPORTED = ("position_bias", "cache")
# Models whose heads have sinks, which sdpa does not know, and whose layers are the op's otherwise.
_WITH_SINKS = ("gpt_oss", "granite_swa", "granitemoe_swa")


def register() -> None:
    """Registers the name; calling it again changes nothing.

    Without a function for masks transformers would make none, and left-padded batches would
    silently be wrong.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    wrap_once(PreTrainedModel, "get_correct_attn_implementation", _asking_the_model)


def _asking_the_model(inner: Callable[..., str]) -> Callable[..., str]:
    """Wraps transformers' check of a requested attention, which asks a model only for its own.

    A model with attention code of its own would ignore a registered function and misread the mask
    that belongs to it (BLOOM), or end in a KeyError (GPT-J). One that excludes sdpa has
    another softmax, and is for us if ours is one of them: a softcap or sinks.
    """

    def check(self: PreTrainedModel, requested: str | None, *args: Any, **kwargs: Any) -> str:
        if requested == NAME and not self._supports_attention_backend:
            raise ValueError(
                _refusal(self, "has attention code of its own and does not use AttentionInterface")
            )
        # Prompts go through sdpa, or through the eager attention that knows a softcap or sinks.
        eager = getattr(self.config, "attn_logit_softcapping", None)
        eager = eager or self.config.model_type in _WITH_SINKS
        if requested == NAME and not (self._supports_sdpa or eager):
            raise ValueError(_refusal(self, "does not support sdpa, which prompts need"))
        return inner(self, requested, *args, **kwargs)

    return check


def _refusal(model: PreTrainedModel, why: str) -> str:
    others = '"eager"' + (' or "sdpa"' if model._supports_sdpa else "")
    return (
        f'attn_implementation="{NAME}": {type(model).__name__} {why}. Remedy: '
        f"attn_implementation={others}; in a model of several parts a single one can use it, as in "
        f'attn_implementation={{"text_config": "{NAME}"}}'
    )


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
        dropout: Dropout as in sdpa.
        scaling: Factor of the scores; default: head_dim ** -0.5.
        **options: Further arguments that the model passes: `softcap`, and `s_aux`, the sinks.

    Returns:
        [sequences, new tokens, heads, head_dim], and None instead of attention weights.

    Raises:
        CalibrationError: For an entry "unified_max" in the model's config that is invalid or was
            made for a model of another size.
    """
    reference = _reference(module, query)
    softcap, sinks = options.get("softcap") or 0.0, options.get("s_aux")
    if not _is_decode(query, key, value, attention_mask, dropout, options):
        if softcap or sinks is not None:  # sdpa would ignore them
            return _eager(module, query, key, value, attention_mask, dropout, scaling, softcap)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    # Imported here, since transformers imports this file in any case.
    from flashsparse_plugin.ops import ops

    mask = None
    if attention_mask is not None:
        mask = attention_mask[:, 0, 0].expand(query.shape[0], -1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    phi = None if reference is None else reference.phi
    out, recomputed = ops.unified_max_decode(
        query[:, :, 0], key, value, None, mask, scale=scale, phi=phi, softcap=softcap, sinks=sinks
    )
    if reference is not None and reference.counter is not None:
        reference.counter.add(recomputed)
    return out.unsqueeze(1), None


class _Reference:
    """A layer's calibration on the device of its decode steps.

    Attributes:
        device: Device of the query.
        dtype: Dtype of the query.
        phi: float32 [heads] on the device, or None for the online softmax.
        counter: Counts recomputed parts, or None if nothing is counted.
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
        if device.type == "cuda":  # so that a CUDA graph need not copy it
            for tensor in (self.phi, *([self.counter.total] if self.counter else [])):
                torch._dynamo.mark_static_address(tensor)
        logger.debug(
            "layer %s: phi from %g to %g for %d heads",
            module.layer_idx, min(found.phi), max(found.phi), heads,
        )  # fmt: skip


def _reference(module: torch.nn.Module, query: Tensor) -> _Reference | None:
    """The layer's state, made at its first call, usually of a prompt, before compilation."""
    if getattr(getattr(module, "config", None), "unified_max", None) is None:
        return None
    found = getattr(module, _KEPT, None)
    if found is None or found.device != query.device or found.dtype != query.dtype:
        _keep_reference(module, query.shape[1], query.device, query.dtype)
        found = getattr(module, _KEPT)
    return found


# Run and not traced if the prompt is compiled, too (as one whole graph from torch 2.13 on).
@torch.compiler.assume_constant_result
def _keep_reference(
    module: torch.nn.Module, heads: int, device: torch.device, dtype: torch.dtype
) -> None:
    with torch.inference_mode(False):  # otherwise only inference mode could count
        setattr(module, _KEPT, _Reference(module, heads, device, dtype))


def _calibrated(module: torch.nn.Module, heads: int, dtype: torch.dtype) -> LayerReference | None:
    """The layer's reference in the model's config, or None if there is none that fits."""
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
    """Gemma 2's own attention with a softcap or gpt-oss's with sinks: of an additive mask."""
    options: dict[str, float] = {"softcap": softcap} if softcap else {}
    eager_attention_forward: Callable[..., tuple[Tensor, Tensor]]
    if softcap:
        from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
    else:  # it takes them from the layer
        from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    if mask is None and query.shape[2] > 1:  # None for a plain causal mask
        mask = torch.ones(*query.shape[2:3], key.shape[2], dtype=torch.bool, device=key.device)
        mask = mask.tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, lowest
        )
    out, _ = eager_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, **options
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
        and ((sinks := options.get("s_aux")) is None or sinks.dtype in (query.dtype, torch.float32))
        and (mask is None or _fits(mask, key))
        and dropout == 0
        and not (torch.is_grad_enabled() and query.requires_grad)
        and all(options.get(name) is None for name in _UNSUPPORTED)
    )


def _fits(mask: Tensor, key: Tensor) -> bool:
    """Whether a mask is of the op's kind: one for all heads, over exactly the cached positions."""
    return (
        mask.dtype == torch.bool
        and mask.dim() == 4
        and mask.shape[0] in (1, key.shape[0])
        and mask.shape[1:] == (1, 1, key.shape[2])
    )
