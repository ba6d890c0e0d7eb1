# SPDX-License-Identifier: Apache-2.0
"""Decode attention in float64, plainly: the oracle of the attention ops' tests.

Written from docs/attention.md and from no kernel. It has no reference phi: the softmax is the same
for every phi, and what the guard of a kernel does must not show in its result.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attended(
    positions: int, lengths: Tensor | None, mask: Tensor | None, window: int, sequences: int
) -> Tensor:
    """Which positions a sequence's query looks at, bool [sequences, positions].

    Those before its length, of them the last `window` where there is a window, and of them the ones
    that the mask allows.
    """
    position = torch.arange(positions)
    end = torch.full((sequences,), positions) if lengths is None else lengths.long()
    end = end.clamp(0, positions)[:, None]
    start = (end - window).clamp(min=0) if window > 0 else torch.zeros_like(end)
    looked_at = (position >= start) & (position < end)
    return looked_at if mask is None else looked_at & mask


def scores(
    query: Tensor,
    key: Tensor,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
) -> Tensor:
    """Inputs of the softmax, float64 [sequences, heads, positions]; -inf where not looked at."""
    sequences, kv_heads, positions, _ = key.shape
    allowed = attended(positions, lengths, mask, window, sequences)[:, None, :]
    group = query.shape[1] // kv_heads
    known = torch.where(allowed[..., None], key.double(), 0.0)  # the rest may be NaN
    raw = torch.einsum("bhd,bhtd->bht", query.double(), known.repeat_interleave(group, 1)) * scale
    if softcap > 0:
        raw = softcap * torch.tanh(raw / softcap)
    return raw.masked_fill(~allowed, -torch.inf)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
) -> Tensor:
    """softmax(scores) @ value in float64 [sequences, heads, head_dim], zero without positions.

    Args:
        query: [sequences, heads, head_dim], one token of each sequence.
        key: [sequences, kv_heads, positions, head_dim]; a group of heads / kv_heads shares a head.
        value: As key.
        lengths: int32 [sequences], or None: all positions.
        mask: bool [sequences, positions], true where a position may be looked at, or None.
        scale: Times q . k.
        softcap: Where above 0, scores become softcap * tanh(score / softcap).
        window: Where above 0, only the last so many positions before the length are looked at.
    """
    sequences, kv_heads, positions, _ = key.shape
    inputs = scores(query, key, lengths, mask, scale=scale, softcap=softcap, window=window)
    nothing = (inputs == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(inputs.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    allowed = attended(positions, lengths, mask, window, sequences)[:, None, :, None]
    known = torch.where(allowed, value.double(), 0.0)
    known = known.repeat_interleave(query.shape[1] // kv_heads, 1)
    return torch.einsum("bht,bhtd->bhd", weights, known)


def gather_pages(cache: Tensor, block_table: Tensor) -> Tensor:
    """Makes [sequences, kv_heads, positions, head_dim] of a paged cache.

    Args:
        cache: [blocks, block_size, kv_heads, head_dim].
        block_table: [sequences, blocks of one sequence].
    """
    return cache[block_table.long()].flatten(1, 2).transpose(1, 2)
