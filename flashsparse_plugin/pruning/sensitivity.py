# SPDX-License-Identifier: Apache-2.0
"""Sensitivity: zeros go where they were measured to cost the least."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from ..modules import weight_of
from .magnitude import magnitude_scores
from .masks import apply_mask_, keep_mask
from .relay import by_decoder_layer, evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_STEP = 0.1  # between the sparsities that are tried
_REACH = 2  # steps below and above the budget
_WINDOWS = 4  # of the calibration text, for each measurement


@torch.no_grad()
def allocate_sensitivity(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    budget: float,
    batches: Sequence[Tensor],
    progress: bool,
) -> dict[str, float]:
    """Shares a budget greedily by measured loss; see `allocation.allocate`.

    One decoder layer at a time is pruned by magnitude within rows to a few sparsities around the
    budget, and the loss of the whole model on a few calibration windows is measured. From the
    lowest sparsity on, the layer goes up a step whose loss grows least for its zeros, until the
    budget is spent. Linears outside of the decoder layers get the budget itself.
    """
    groups = by_decoder_layer(model, linears)
    # No layer may lose all of its weights.
    step = min(_STEP, budget / (_REACH + 1), (1 - budget) / (_REACH + 1))
    grid = sorted({budget + step * count for count in range(-_REACH, _REACH + 1)})
    windows = torch.cat([*batches])[:_WINDOWS]
    sizes = [sum(weight_of(linears[name]).numel() for name in group) for group in groups]
    losses: list[list[float]] = []
    with (
        evaluating(model),
        tqdm(total=len(groups) * len(grid), desc="sensitivity", disable=not progress) as bar,
    ):
        for group in groups:
            weights = [weight_of(linears[name]) for name in group]
            dense = [weight.clone() for weight in weights]
            scores = [magnitude_scores(weight) for weight in weights]
            losses.append([])
            try:
                for share in grid:
                    for weight, score in zip(weights, scores, strict=True):
                        apply_mask_(weight, keep_mask(score, share, "row"))
                    losses[-1].append(_loss(model, windows))
                    bar.update()
            finally:
                for weight, before in zip(weights, dense, strict=True):
                    weight.copy_(before)
    shares = spend(sizes, grid, losses, budget)
    found = dict.fromkeys(linears, budget)
    for group, share in zip(groups, shares, strict=True):
        found |= dict.fromkeys(group, share)
    return found


def spend(
    sizes: Sequence[int], grid: Sequence[float], losses: Sequence[Sequence[float]], budget: float
) -> list[float]:
    """Raises sparsities step by step, the cheapest step first, until the budget is spent.

    Args:
        sizes: Elements of each group.
        grid: The sparsities that were measured, ascending, from at most the budget.
        losses: By group, the loss at each of them.
        budget: The mean sparsity to reach, by elements.

    Returns:
        The sparsity of each group; that of the last step taken may lie between two of the grid.
    """
    at, shares = [0] * len(sizes), [grid[0]] * len(sizes)
    left = (budget - grid[0]) * sum(sizes)
    queue: list[tuple[float, int]] = []

    def offer(group: int) -> None:
        here = at[group]
        if here + 1 < len(grid):
            zeros = (grid[here + 1] - grid[here]) * sizes[group]
            heapq.heappush(queue, ((losses[group][here + 1] - losses[group][here]) / zeros, group))

    for group in range(len(sizes)):
        offer(group)
    while left > 1e-9 * sum(sizes):
        _, group = heapq.heappop(queue)
        zeros = (grid[at[group] + 1] - grid[at[group]]) * sizes[group]
        at[group] += 1
        shares[group] = shares[group] + min(left, zeros) / sizes[group]
        left -= zeros
        offer(group)
    return shares


def _loss(model: PreTrainedModel, windows: Tensor) -> float:
    """The mean loss of the next token over windows."""
    total = 0.0
    for window in windows:
        logits = model(input_ids=window[None], use_cache=False).logits[0, :-1].float()
        total += float(cross_entropy(logits, window[1:].to(logits.device)))
    return total / len(windows)
