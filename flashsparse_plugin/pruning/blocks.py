# SPDX-License-Identifier: Apache-2.0
"""Blocks of 16 rows x 256 columns that stay dense beside 2:4 ones: those that would lose most.

2:4 costs more in some places than in others. A budget of dense blocks goes to where the loss that
was measured is largest: first to layers, and in each of them to its blocks.

Source: PATCH (arXiv 2509.23410) and SpenseGPT (arXiv 2606.10445) leave a part of each matrix dense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..modules import weight_of
from .experts import ExpertView
from .fisher import fisher_information
from .inputs import inputs_of
from .nm import nm_keep_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = (16, 256)
"""Rows and columns, as the format has them whose blocks are of both kinds."""


def block_sums(values: Tensor) -> Tensor:
    """Sums over blocks, float64 [block rows, block columns]; those at the edges are smaller.

    Args:
        values: [out_features, in_features].
    """
    rows, cols = values.shape
    padded = F.pad(values.double(), (0, -cols % BLOCK[1], 0, -rows % BLOCK[0]))
    return padded.unflatten(1, (-1, BLOCK[1])).unflatten(0, (-1, BLOCK[0])).sum((1, 3))


def block_sizes(rows: int, cols: int, device: torch.device | None = None) -> Tensor:
    """Elements of blocks, float64 [block rows, block columns]."""
    heights, widths = (
        torch.tensor([min(step, size - first) for first in range(0, size, step)], device=device)
        for size, step in zip((rows, cols), BLOCK, strict=True)
    )
    return (heights[:, None] * widths).double()


def take(losses: Tensor, sizes: Tensor, share: float) -> Tensor:
    """Which blocks to keep dense: those with the largest losses for their elements.

    Equal ones are taken in order. As many are taken as come nearest to the share.

    Args:
        losses: Of blocks, not negative, of any shape.
        sizes: Elements of the blocks, float64, of the same shape.
        share: Of all elements, 0..1.

    Returns:
        bool, of their shape.
    """
    order = (losses / sizes).flatten().sort(descending=True, stable=True).indices
    taken = sizes.flatten()[order]
    within = taken.cumsum(0) - taken / 2 < share * taken.sum()
    chosen = torch.zeros_like(order, dtype=torch.bool)
    chosen[order[within]] = True
    return chosen.view(losses.shape)


def dense_mask(losses: Tensor, share: float) -> Tensor:
    """The elements of a weight that lie in its dense blocks, bool [out_features, in_features].

    Args:
        losses: [out_features, in_features], what dropping each element costs; 0 for those that
            2:4 keeps.
        share: Of the elements of the weight that are in dense blocks, 0..1.
    """
    rows, cols = losses.shape
    chosen = take(block_sums(losses), block_sizes(rows, cols, losses.device), share)
    chosen = chosen.repeat_interleave(BLOCK[0], 0)[:rows]
    return chosen.repeat_interleave(BLOCK[1], 1)[:, :cols]


@torch.no_grad()
def share_dense(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    dense: float,
    batches: Sequence[Tensor],
    progress: bool,
) -> dict[str, float]:
    """Shares a budget of dense blocks among layers by what 2:4 would lose.

    The loss of a block is what its share of the errors of outputs, by Wanda's approximation (the
    sum of w^2 |x|^2 over what is dropped), costs the model's predictions (`fisher_information`),
    and the blocks of all layers are taken together. Without a text, or where experts of a mixture
    are among the layers, whose outputs no hook sees, it is the squared error over the squared
    outputs, as if each layer mattered alike.

    Args:
        model: A model; it is run if there are batches.
        linears: The layers to prune, by name.
        dense: The share of elements in dense blocks, over all layers.
        batches: Token ids, on the model's device; without them weights count alone.
        progress: Show a progress bar.

    Returns:
        The share of each layer, by name.
    """
    seen = inputs_of(model, linears, batches, (), "losses", progress) if batches else {}
    information = {}
    if batches and not any(isinstance(each, ExpertView) for each in linears.values()):
        information = fisher_information(model, linears, batches, progress)
    losses, sizes = [], []
    for name, linear in linears.items():
        weight = weight_of(linear)
        energy = weight.detach().float().square()
        if name in seen:
            energy = energy * seen[name].norms.norms().square().float()
        dropped = energy * ~nm_keep_mask(energy, 2, 4)
        if name in information:
            lost = block_sums(dropped * information[name][:, None])
        else:
            lost = block_sums(dropped) / (float(energy.sum(dtype=torch.float64)) or 1.0)
        losses.append(lost.flatten().cpu())
        sizes.append(block_sizes(weight.shape[0], weight.shape[1]).flatten())
    chosen = take(torch.cat(losses), torch.cat(sizes), dense)
    split = chosen.split([len(each) for each in sizes])
    return {
        name: float(own[mask].sum()) / math.prod(weight_of(linear).shape)
        for (name, linear), own, mask in zip(linears.items(), sizes, split, strict=True)
    }
