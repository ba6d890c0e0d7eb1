# SPDX-License-Identifier: Apache-2.0
"""How a budget of zeros is shared among the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from .masks import zero_count
from .owl import allocate_owl
from .sensitivity import allocate_sensitivity

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNIFORM = "uniform"
_MEASURED = {"owl": allocate_owl, "sensitivity": allocate_sensitivity}
ALLOCATIONS = (UNIFORM, *_MEASURED)


def needs_text(allocation: str) -> bool:
    """Whether an allocation runs the model on calibration text.

    Raises:
        ValueError: For an unknown one.
    """
    if allocation not in ALLOCATIONS:
        raise ValueError(
            f"allocation {allocation!r} is invalid: choose one of "
            f"{', '.join(map(repr, ALLOCATIONS))}"
        )
    return allocation in _MEASURED


def allocate(
    allocation: str,
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    budget: float,
    batches: Sequence[Tensor],
    progress: bool,
) -> dict[str, float]:
    """Shares a budget of zeros among layers; all linears of a decoder layer get the same share.

    Args:
        allocation: One of `ALLOCATIONS`.
        model: The model, not pruned yet.
        linears: The layers to prune, by name.
        budget: The share of zeros of all of them together, 0..1.
        batches: int64 [samples, length] each, token ids; for those that measure.
        progress: Show a progress bar.

    Returns:
        The share of zeros by layer; their mean by elements is the budget.

    Raises:
        ValueError: For a budget that is not within 0..1, or a model without decoder layers.
    """
    zero_count(1, budget)
    if not needs_text(allocation):
        return dict.fromkeys(linears, budget)
    return _MEASURED[allocation](model, linears, budget, batches, progress)
