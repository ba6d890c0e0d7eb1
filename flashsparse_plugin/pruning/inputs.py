# SPDX-License-Identifier: Apache-2.0
"""Statistics of the inputs of all layers, from one run of the unpruned model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

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
        linears: The layers whose inputs are looked at, by name.
        batches: Token ids, int64 [samples, length] each, on the model's device.
        needs: Statistics beside norms; see `Statistics`.
        title: Of the progress bar.
        progress: Show it.
    """
    seen = {name: Inputs(name, linear, needs) for name, linear in linears.items()}
    hooks = [
        linear.register_forward_pre_hook(lambda _, args, own=seen[name]: own.add(args[0]))
        for name, linear in linears.items()
    ]
    try:
        with evaluating(model):
            for batch in tqdm(batches, title, unit="batch", disable=not progress):
                model(input_ids=batch, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
