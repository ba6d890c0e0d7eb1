# SPDX-License-Identifier: Apache-2.0
"""Magnitude pruning: the smallest weights go first (Han et al., 2015, arXiv 1506.02626)."""

from __future__ import annotations

import torch

from ..packed import Scheme
from .layers import check_weight
from .masks import apply_mask_
from .rule import PruningRule


def magnitude_scores(weight: torch.Tensor) -> torch.Tensor:
    """Return |weight| as float32, of the weight's shape."""
    return weight.detach().contiguous().abs().float()


def prune_for(
    weight: torch.Tensor, scheme: Scheme, sparsity: float | None, name: str
) -> torch.Tensor:
    """Return a copy of one weight pruned to what a scheme keeps: its pattern, or any zeros.

    Args:
        weight: [out_features, in_features], float16, bfloat16 or float32.
        scheme: How it will be packed.
        sparsity: The share of zeros; None where the pattern says it.
        name: What errors call the weight.

    Raises:
        ValueError: As `prune_weight` does.
    """
    pattern = scheme.format.pattern(scheme)
    if pattern is None:
        return prune_weight(weight, sparsity, name=name)
    if pattern[0] == pattern[1]:  # it keeps every element
        return weight
    return prune_weight(weight, sparsity, None, pattern[:2], pattern[2], name)


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
