# SPDX-License-Identifier: Apache-2.0
"""Pruning by statistics of inputs, decoder layer by decoder layer.

Each layer is pruned by the activations that its already pruned predecessors give, and only one
layer's activations are in memory at a time (Wanda and SparseGPT do so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..modules import weight_of
from .gathering import gathering, starved
from .layers import Retained
from .methods import Method
from .relay import Relay, decoder_layers, evaluating, inside
from .rule import PruningRule

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def prune_in_order(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    method: Method,
    rules: Mapping[str, PruningRule],
    batches: Sequence[Tensor],
    gradients: Mapping[str, Tensor],
    progress: bool,
    weighted: bool = False,
) -> tuple[dict[str, Retained], dict[str, int]]:
    """Prunes layers in place.

    Linears outside of the decoder layers are pruned at their place in the model: before them (OPT's
    project_in) or after them (lm_head, if requested).

    Args:
        model: A transformers causal LM; its training flag is restored.
        linears: The layers to prune by name, from `prunable_linears`, and experts.
        method: The method.
        rules: How much to prune, by layer: of scope "row" or "layer", or a pattern.
        batches: int64 [samples, length] each, token ids on the model's device.
        gradients: The statistic of this name by layer, if the method needs it.
        progress: Show a progress bar.
        weighted: Whether the inputs of experts count by the router's weights.

    Returns:
        How much of the scores is left, by layer; and the experts that too few tokens reached, by
        how many did. Those are pruned by all tokens of their layer.

    Raises:
        ValueError: For a layer that saw no finite activation.
    """
    layers = decoder_layers(model)
    relay = Relay(model, layers, batches)
    within = inside(layers, linears)
    outside = {name: linear for name, linear in linears.items() if name not in within}

    retained: dict[str, Retained] = {}
    few: dict[str, int] = {}

    def prune_at(index: int, here: Mapping[str, nn.Module]) -> set[str]:
        """Prune the linears that run on the way to `index`; return the names of those that ran."""
        with gathering(here, method.needs, weighted) as seen:
            relay.run(index)
        if hungry := starved(here, seen):
            few.update(hungry)
            some = {name: here[name] for name in hungry}
            with gathering(some, method.needs, everyone=True) as fed:
                relay.run(index)
            seen |= fed
        ran = {name for name, inputs in seen.items() if inputs.seen}
        for name, linear in here.items():
            if name in ran or index >= 0:  # before the decoder layers others may still run
                statistics = seen.pop(name).statistics(gradients.get(name))
                retained[name] = method.prune_(weight_of(linear), statistics, rules[name])
        return ran

    with evaluating(model):
        if outside:
            before = prune_at(-1, outside)
            outside = {name: lin for name, lin in outside.items() if name not in before}
        bar = tqdm(layers, method.name, unit="layer", disable=not progress)
        for index, layer in enumerate(bar):
            if here := inside(layer, linears):
                prune_at(index, here)
            if outside or index + 1 < len(layers):
                relay.run(index, store=True)
        if outside:
            prune_at(len(layers), outside)
    return retained, few
