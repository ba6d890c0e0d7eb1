# SPDX-License-Identifier: Apache-2.0
"""Decode attention in float64, the oracle of the attention ops' tests.

It was written from docs/attention.md and not from a kernel. It has no reference phi: the softmax is
the same for every phi, and the guard of a kernel must not change its result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attended(key: Tensor, lengths: Tensor | None, mask: Tensor | None, window: int = 0) -> Tensor:
    """The positions that a sequence's query attends to, bool [sequences, positions].

    A position is attended to if it is before the length, among the last `window` of these if there
    is a window, and allowed by the mask.
    """
    sequences, _, positions, _ = key.shape
    position = torch.arange(positions, device=key.device)
    end = position.new_full((sequences,), positions) if lengths is None else lengths.long()
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
    key_scale: Tensor | None = None,
) -> Tensor:
    """Inputs of the softmax, float64 [sequences, heads, positions]; -inf where not attended to."""
    allowed = attended(key, lengths, mask, window)[:, None, :]
    raw = _products(query.double(), _known(key, allowed, key_scale)) * scale
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
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> Tensor:
    """softmax(scores) @ value in float64 [sequences, heads, head_dim], zero without positions.

    Args:
        query: [sequences, heads, head_dim], one token of each sequence.
        key: [sequences, kv_heads, positions, head_dim]; a group of heads / kv_heads shares a head.
        value: As key.
        lengths: int32 [sequences], or None: all positions.
        mask: bool [sequences, positions], true where a position may be attended to, or None.
        scale: Factor of q . k.
        softcap: If above 0, scores become softcap * tanh(score / softcap).
        window: If above 0, only this many positions before the length are attended to.
        sinks: [heads], a score of each head that belongs to no position and has no value: it takes
            its share of the softmax. Or None.
        key_scale: One number or [kv_heads], by which keys are multiplied, such as codes; or None.
        value_scale: The same of values.
    """
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "window": window}
    inputs = scores(query, key, lengths, mask, **options, key_scale=key_scale)
    allowed = attended(key, lengths, mask, window)[:, None, :]
    return _weighted(_softmax(inputs, sinks), _known(value, allowed, value_scale))


def error_bound(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    rounded_terms: bool,
    low: float = 1.0,
) -> Tensor:
    """The largest error of each element of a result against `decode`, float64 of its shape.

    Each term errs by the float32 sum of its score, by the exponential and, with `rounded_terms`, by
    its rounding to the dtype of query, up to half an eps. Rounding errors of many terms are of
    either sign, so their bound is eight times their standard deviation if that is less than their
    sum. Terms err by an absolute amount where their dtype has no more digits. Further errors come
    from the float32 sums over the positions, which a tensor core truncates rather than rounds, and
    from rounding the result.

    Args:
        rounded_terms: Whether terms are rounded to the dtype of query, as on CUDA.
        low: Lower bound of a sum of terms.
    """
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "window": window}
    allowed = attended(key, lengths, mask, window)[:, None, :]
    options["key_scale"] = key_scale
    weights = _softmax(scores(query, key, lengths, mask, **options), sinks)
    values, keys = _known(value, allowed, value_scale), _known(key, allowed, key_scale)
    exact = _weighted(weights, values)
    typical = _weighted(weights, values.abs())

    sizes = _products(query.double().abs(), keys.abs()) * scale
    score_error = (query.shape[-1] + 16) * 2.0**-24 * sizes + softcap * 2.0**-21 + 2.0**-20
    # The largest of a row, since an error of one term changes the sum that divides all terms.
    largest = score_error.masked_fill(~allowed, 0.0).amax(-1, keepdim=True)
    if sinks is not None:  # as rounded to float32, in base 2; -inf is exact
        sizes = sinks.double().abs().nan_to_num(posinf=0.0)[:, None]
        largest = largest.maximum(2.0**-22 * sizes + 2.0**-20)
    relative = 2 * largest.expm1()
    count = allowed.sum(-1, keepdim=True)
    relative = relative + (8 * count**0.5 + rounded_terms * count / 16) * 2.0**-24
    bound = relative * (typical + exact.abs())

    finfo, lost = torch.finfo(query.dtype), 2.0**-126  # of a term that has no digits left
    group = query.shape[1] // value.shape[1]
    if rounded_terms:
        squares = weights**2
        variance = _weighted(squares, values**2) - 2 * exact * _weighted(squares, values)
        variance = (variance + exact**2 * squares.sum(-1, keepdim=True)).clamp(min=0.0)
        bound += finfo.eps / 2 * torch.minimum(8 * (variance / 3) ** 0.5, typical + exact.abs())
        if query.dtype == torch.float16:
            lost = 2.0**-25
    bound += lost / low * values.abs().sum(-2).repeat_interleave(group, 1)
    return bound + exact.abs() * finfo.eps / 2 + max(finfo.tiny * finfo.eps, 1e-37)


def _known(cache: Tensor, allowed: Tensor, scale: Tensor | None = None) -> Tensor:
    """The tensor in float64, zero at positions that are not attended to and may hold NaN."""
    known = torch.where(allowed[..., None], cache.double(), 0.0)
    return known if scale is None else known * scale.double().view(-1, 1, 1)


def _products(query: Tensor, key: Tensor) -> Tensor:
    """q . k as [sequences, heads, positions]; each kv head serves a group of query heads."""
    grouped = query.unflatten(1, (key.shape[1], -1))
    return torch.einsum("bkgd,bktd->bkgt", grouped, key).flatten(1, 2)


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Terms @ value as [sequences, heads, head_dim]; each kv head serves a group of heads."""
    grouped = weights.unflatten(1, (value.shape[1], -1))
    return torch.einsum("bkgt,bktd->bkgd", grouped, value).flatten(1, 2)


def _softmax(inputs: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Of scores [sequences, heads, positions]; without the shares of sinks, if there are any."""
    if sinks is not None:
        column = sinks.double()[:, None].expand(*inputs.shape[:2], 1)
        inputs = torch.cat([inputs, column], -1)
    nothing = (inputs == -torch.inf).all(-1, keepdim=True)
    shares = torch.softmax(inputs.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    return shares if sinks is None else shares[..., :-1]
