# SPDX-License-Identifier: Apache-2.0
"""Magnitude pruning: the smallest weights go first (Han et al., 2015, arXiv 1506.02626)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from tqdm import tqdm

from ..modules import weight_of
from .layers import Retained, apply_mask_, check_weight
from .masks import below, kth_lowest, zero_count
from .rule import PruningRule, share_kept


def magnitude_scores(weight: torch.Tensor) -> torch.Tensor:
    """Return |weight| as float32, of the weight's shape."""
    return weight.detach().contiguous().abs().float()


def prune_weight(
    weight: torch.Tensor,
    sparsity: float | None = None,
    scope: str | None = None,
    pattern: tuple[int, int] | None = None,
    vector_length: int = 1,
    name: str = "weight",
) -> torch.Tensor:
    """Return a copy of one weight with its smallest elements set to zero.

    Args:
        weight: [out_features, in_features], float16, bfloat16 or float32.
        sparsity: The share of zeros, 0..1; None for 0.5, or for what `pattern` implies.
        scope: "layer" (the default) or "row".
        pattern: (n, m) keeps n of every m consecutive columns instead.
        vector_length: Consecutive rows that share the choice of a pattern.
        name: What errors call the weight.

    Returns:
        A weight of the same shape and dtype; elements that were kept are the same bit for bit.

    Raises:
        ValueError: For a weight with NaN or infinite elements, or an impossible rule.
    """
    rule = PruningRule(sparsity, scope or (None if pattern else "layer"), pattern, vector_length)
    check_weight(name, weight)
    pruned = weight.detach().clone()
    apply_mask_(pruned, rule.keep_mask(magnitude_scores(pruned)))
    return pruned


def prune_magnitude(
    linears: Mapping[str, nn.Module], rule: PruningRule, progress: bool
) -> dict[str, Retained]:
    """Prune layers in place by the magnitude of their weights, one layer at a time.

    Returns:
        How much of the magnitudes is left, by layer.
    """
    if rule.scope == "global":
        assert rule.sparsity is not None  # every rule with a scope has one
        return _prune_global(linears, zero_count(_elements(linears), rule.sparsity), progress)
    bar = tqdm(linears.items(), "magnitude", unit="layer", disable=not progress)
    return {
        name: rule.prune_(weight_of(linear), magnitude_scores(weight_of(linear)), "layer")
        for name, linear in bar
    }


def _elements(linears: Mapping[str, nn.Module]) -> int:
    return sum(weight_of(linear).numel() for linear in linears.values())


def _prune_global(
    linears: Mapping[str, nn.Module], drop: int, progress: bool
) -> dict[str, Retained]:
    """Drop the smallest weights of all layers together; only one layer's scores are in memory."""
    if drop == 0:
        return dict.fromkeys(linears, Retained(1.0))
    retained = {}
    with tqdm(total=3 * len(linears), desc="magnitude", unit="layer", disable=not progress) as bar:

        def scores() -> Iterator[torch.Tensor]:
            for linear in linears.values():
                yield magnitude_scores(weight_of(linear))
                bar.update()

        threshold, ties = kth_lowest(scores, drop)
        for (name, linear), score in zip(linears.items(), scores(), strict=True):
            lowest = below(score, threshold, ties)
            ties -= int((score[lowest] == threshold).sum())
            apply_mask_(weight_of(linear), ~lowest)
            retained[name] = Retained(share_kept(score, ~lowest))
    return retained
