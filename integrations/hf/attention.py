# SPDX-License-Identifier: Apache-2.0
"""`attn_implementation="unified_max"`: our decode attention in transformers' models.

One new token a sequence goes through `ops.unified_max_decode`, without phi: the online softmax.
Prompts, training and what else it does not do go through torch's scaled_dot_product_attention, as
with "sdpa".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# transformers takes any name with "flash" or "sdpa" in it for one of its own.
NAME = "unified_max"
HEAD_DIMS = (64, 80, 96, 128, 256)
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
        ValueError: For a model that caps its scores, which sdpa would leave out for the prompt.
    """
    if options.get("softcap"):
        raise ValueError(
            f"{type(module).__name__} caps its attention scores (softcap {options['softcap']}), "
            f"which attn_implementation={NAME!r} cannot do for prompts: load the model with "
            'attn_implementation="eager"'
        )
    if not _is_decode(query, key, value, attention_mask, dropout, options):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    # Here, since transformers imports this file whoever uses it.
    from flashsparse_plugin.ops import ops

    mask = None
    if attention_mask is not None:
        mask = attention_mask[:, 0, 0].expand(query.shape[0], -1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out, _ = ops.unified_max_decode(query[:, :, 0], key, value, None, mask, scale=scale)
    return out.unsqueeze(1), None


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
