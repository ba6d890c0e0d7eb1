# SPDX-License-Identifier: Apache-2.0
"""The op that orders a batch by expert, for layers of experts in any format.

Its schema is registered in kernels/bindings.
"""

from __future__ import annotations

import torch
from torch.library import register_fake

from . import library  # noqa: F401  (the ops must exist before they are completed)


@register_fake("flashsparse::experts_order")
def _(topk_ids, experts, block, expert_map=None):
    """experts_order(topk_ids, experts, block, expert_map=None) -> (slots, block_experts, blocks)

    Orders the slots of a batch by expert, stably, in one launch and without atomic operations: the
    same every time, of a length that a CUDA graph can hold for any routing. Slot
    token * top_k + j is the j-th expert of a token.

    topk_ids is int32 or int64 [tokens, top_k]; experts the number of local ones, up to 1024.
    expert_map, int32, has the local expert of each that topk_ids names, or -1: a slot with -1 is
    left out, and so is one whose expert is outside.

    Each expert's slots fill whole blocks of `block` slots, padded with tokens * top_k. Results are
    int32: slots [tokens * top_k + experts * (block - 1)], padded likewise; block_experts, the
    expert of each block, as many as any routing can need, -1 after the last; blocks [1], how many
    there are.
    """
    torch._check(topk_ids.dim() == 2, lambda: "topk_ids must be [tokens, top_k]")
    padded = topk_ids.numel() + experts * (block - 1)
    lengths = padded, torch.sym_min(topk_ids.numel(), padded // block), 1
    return tuple(topk_ids.new_empty(length, dtype=torch.int32) for length in lengths)
