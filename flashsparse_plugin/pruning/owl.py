# SPDX-License-Identifier: Apache-2.0
"""OWL keeps more weights where inputs have more outliers (Yin et al., 2024, arXiv 2310.05175)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..modules import weight_of
from .inputs import inputs_of
from .relay import by_decoder_layer
from .wanda import wanda_scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OUTLIER = 5.0  # times the mean score of a decoder layer: M of the paper
_REACH = 0.08  # the most by which a layer's share differs from the mean, about: lambda


@torch.no_grad()
def allocate_owl(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    budget: float,
    batches: Sequence[Tensor],
    progress: bool,
) -> dict[str, float]:
    """Shares a budget by the outliers among Wanda's scores; see `allocation.allocate`.

    The density of a decoder layer grows linearly with the share of its weights whose score exceeds
    5 times the mean; the lowest and the highest density are 0.16 apart. Linears outside of the
    decoder layers get the budget itself.
    """
    groups = by_decoder_layer(model, linears)
    seen = inputs_of(model, linears, batches, (), "outliers", progress)
    sizes = [sum(weight_of(linears[name]).numel() for name in group) for group in groups]
    shares = []
    for group, elements in zip(groups, sizes, strict=True):
        scores = [wanda_scores(weight_of(linears[n]), seen[n].norms.norms()) for n in group]
        mean = sum(float(each.sum(dtype=torch.float64)) for each in scores) / elements
        shares.append(sum(int((each > _OUTLIER * mean).sum()) for each in scores) / elements)
    least, spread = min(shares), max(shares) - min(shares)
    reach = 2 * min(_REACH, budget / 2, (1 - budget) / 2)  # so that no share leaves 0..1
    denser = [reach * (share - least) / spread if spread else 0.0 for share in shares]
    mean_denser = sum(a * b for a, b in zip(denser, sizes, strict=True)) / sum(sizes)
    found = dict.fromkeys(linears, budget)
    for group, more in zip(groups, denser, strict=True):
        found |= dict.fromkeys(group, budget + mean_denser - more)
    return found
