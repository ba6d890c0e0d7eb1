# SPDX-License-Identifier: Apache-2.0
"""Pruning by scores that no other layer changes: layer by layer, or all layers together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..modules import weight_of
from .layers import Retained
from .masks import apply_mask_, below, kth_lowest, zero_count
from .methods import Method
from .rule import PruningRule, share_kept
from .statistics import Statistics


def prune_each(
    linears: Mapping[str, nn.Module],
    method: Method,
    rules: Mapping[str, PruningRule],
    gradients: Mapping[str, Tensor],
    progress: bool,
) -> dict[str, Retained]:
    """Prunes layers in place, one at a time.

    Args:
        linears: The layers, by name.
        method: A method that needs no statistics of inputs.
        rules: How much to prune, by layer.
        gradients: The statistic of this name by layer, if the method needs it.
        progress: Show a progress bar.

    Returns:
        How much of the scores is left, by layer.
    """
    bar = tqdm(linears.items(), method.name, unit="layer", disable=not progress)
    return {
        name: method.prune_(
            weight_of(linear), Statistics(name, gradients=gradients.get(name)), rules[name]
        )
        for name, linear in bar
    }


@torch.no_grad()
def prune_global(
    linears: Mapping[str, nn.Module],
    method: Method,
    sparsity: float,
    gradients: Mapping[str, Tensor],
    progress: bool,
) -> dict[str, Retained]:
    """Drops the lowest scores of all layers together; only one layer's scores are in memory."""
    drop = zero_count(sum(weight_of(linear).numel() for linear in linears.values()), sparsity)
    if drop == 0:
        return dict.fromkeys(linears, Retained(1.0))
    retained = {}
    with tqdm(total=3 * len(linears), desc=method.name, unit="layer", disable=not progress) as bar:

        def scores() -> Iterator[Tensor]:
            for name, linear in linears.items():
                statistics = Statistics(name, gradients=gradients.get(name))
                yield method.ranked(weight_of(linear), statistics).contiguous()
                bar.update()

        threshold, ties = kth_lowest(scores, drop)
        for (name, linear), score in zip(linears.items(), scores(), strict=True):
            lowest = below(score, threshold, ties)
            ties -= int((score[lowest] == threshold).sum())
            apply_mask_(weight_of(linear), ~lowest)
            retained[name] = Retained(share_kept(score, ~lowest))
    return retained
