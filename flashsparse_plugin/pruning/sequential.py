# SPDX-License-Identifier: Apache-2.0
"""Weights are changed by statistics of their inputs, decoder layer by decoder layer.

Each layer is pruned or rounded by the activations that its already changed predecessors give, and
only one layer's activations are in memory at a time (Wanda, SparseGPT and GPTQ do so).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..modules import weight_of
from .gathering import gathering, starved
from .relay import Relay, decoder_layers, evaluating, inside
from .statistics import Statistics

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


@torch.no_grad()
def change_in_order(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    change: Callable[[str, Tensor, Statistics], T],
    needs: Collection[str],
    batches: Sequence[Tensor],
    gradients: Mapping[str, Tensor],
    title: str,
    progress: bool,
    weighted: bool = False,
) -> tuple[dict[str, T], dict[str, int]]:
    """Changes the weights of layers in place.

    Linears outside of the decoder layers are changed at their place in the model: before them
    (OPT's project_in) or after them (lm_head, if requested).

    Args:
        model: A transformers causal LM; its training flag is restored.
        linears: The layers to change by name, from `prunable_linears`, and experts.
        change: Changes a weight in place, by the layer's name and statistics.
        needs: The names of the statistics that it reads; see `Statistics`.
        batches: int64 [samples, length] each, token ids on the model's device.
        gradients: The statistic of this name by layer, if it is needed.
        title: Of the progress bar.
        progress: Show a progress bar.
        weighted: Whether the inputs of experts count by the router's weights.

    Returns:
        What `change` returned, by layer; and the experts that too few tokens reached, by how many
        did. Those are changed by all tokens of their layer.

    Raises:
        ValueError: For a layer that saw no finite activation.
    """
    layers = decoder_layers(model)
    relay = Relay(model, layers, batches)
    within = inside(layers, linears)
    outside = {name: linear for name, linear in linears.items() if name not in within}

    made: dict[str, T] = {}
    few: dict[str, int] = {}

    def change_at(index: int, here: Mapping[str, nn.Module]) -> set[str]:
        """Changes the linears that run on the way to `index`; returns the names of those."""
        with gathering(here, needs, weighted) as seen:
            relay.run(index)
        if hungry := starved(here, seen):
            few.update(hungry)
            some = {name: here[name] for name in hungry}
            with gathering(some, needs, everyone=True) as fed:
                relay.run(index)
            seen |= fed
        ran = {name for name, inputs in seen.items() if inputs.seen}
        for name, linear in here.items():
            if name in ran or index >= 0:  # before the decoder layers others may still run
                statistics = seen.pop(name).statistics(gradients.get(name))
                made[name] = change(name, weight_of(linear), statistics)
        return ran

    with evaluating(model):
        if outside:
            before = change_at(-1, outside)
            outside = {name: lin for name, lin in outside.items() if name not in before}
        bar = tqdm(layers, title, unit="layer", disable=not progress)
        for index, layer in enumerate(bar):
            if here := inside(layer, linears):
                change_at(index, here)
            if outside or index + 1 < len(layers):
                relay.run(index, store=True)
        if outside:
            change_at(len(layers), outside)
    return made, few
