# SPDX-License-Identifier: Apache-2.0
"""Statistics of the inputs of all layers, from one run of the unpruned model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .gathering import gathering
from .relay import evaluating
from .statistics import Inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def inputs_of(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    batches: Sequence[Tensor],
    needs: Collection[str],
    title: str,
    progress: bool,
) -> dict[str, Inputs]:
    """Runs a model on all batches.

    Args:
        model: A model that takes token ids.
        linears: Linear layers and experts (`ExpertView`), by name.
        batches: Token ids, int64 [samples, length] each, on the model's device.
        needs: Statistics beside norms; see `Statistics`.
        title: Of the progress bar.
        progress: Show it.
    """
    with gathering(linears, needs) as seen, evaluating(model):
        for batch in tqdm(batches, title, unit="batch", disable=not progress):
            model(input_ids=batch, use_cache=False)
    return seen
