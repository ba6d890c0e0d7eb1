# SPDX-License-Identifier: Apache-2.0
"""What a layer loses by each choice: the error of its outputs on calibration text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..modules import weight_of
from ..packed import FormatError
from ..pruning.gathering import gathering
from ..pruning.layers import check_weight
from ..pruning.methods import get_method
from ..pruning.relay import Relay, decoder_layers, evaluating, inside
from ..pruning.rule import PruningRule
from ..pruning.statistics import GRAM, INPUT_NORMS, Statistics
from .choices import Choice

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Measured:
    """A choice for a layer.

    Attributes:
        choice: What becomes of it.
        nbytes: Bytes of the weight then.
        loss: |W X - W' X|^2 / |W X|^2 over the calibration text.
        density: Share of its weights that are not zero.
    """

    choice: Choice
    nbytes: int
    loss: float
    density: float


@torch.no_grad()
def measure_losses(
    model: PreTrainedModel,
    linears: Mapping[str, nn.Module],
    batches: Sequence[Tensor],
    choices: Sequence[Choice],
    method: str,
    progress: bool,
) -> dict[str, list[Measured]]:
    """Makes every choice for every layer and compares outputs; the model stays as it is.

    Each layer is judged by the inputs that it has in the dense model, so that the choices of others
    do not matter. One decoder layer's statistics are in memory at a time.

    Args:
        model: A causal language model.
        linears: The layers, by name; those outside of the decoder layers are left out.
        batches: Token ids, int64 [samples, length] each, on the model's device.
        choices: What may become of a layer. A format that refuses a layer is left out there.
        method: How zeros are chosen, by its name; by inputs alone.
        progress: Show a progress bar.

    Returns:
        By layer, its choices.
    """
    layers, found = decoder_layers(model), dict[str, list[Measured]]()
    relay = Relay(model, layers, batches)
    with evaluating(model):
        for index, layer in enumerate(tqdm(layers, "losses", unit="layer", disable=not progress)):
            here = inside(layer, linears)
            with gathering(here, (GRAM, INPUT_NORMS)) as seen:
                relay.run(index, store=True)
            for name, each in here.items():
                weight = weight_of(each).detach()
                check_weight(name, weight)
                found[name] = _measure(weight, seen.pop(name).statistics(None), choices, method)
    return found


def _measure(
    weight: Tensor, statistics: Statistics, choices: Sequence[Choice], method: str
) -> list[Measured]:
    gram = statistics.gram
    assert gram is not None
    whole = _energy(weight.float(), gram) or 1.0
    pruned: dict[PruningRule | None, Tensor] = {None: weight}
    found = []
    for choice in choices:
        if choice.rule not in pruned:
            pruned[choice.rule] = weight.clone()
            assert choice.rule is not None
            get_method(method).prune_(pruned[choice.rule], statistics, choice.rule)
        kept = pruned[choice.rule]
        nbytes, held = kept.nbytes, kept
        try:
            if (scheme := choice.scheme(weight.dtype)) is not None:
                packed = scheme.format.pack(kept, scheme)
                nbytes, held = packed.nbytes, packed.unpack()
        except FormatError:  # this layer cannot be that
            continue
        loss = _energy((weight.float() - held.float()), gram) / whole
        density = int(held.count_nonzero()) / held.numel()
        found.append(Measured(choice, nbytes, loss, density))
    return found


def _energy(weight: Tensor, gram: Tensor) -> float:
    """|W X|^2, of the Gram matrix of X."""
    return float(((weight @ gram) * weight).sum(dtype=torch.float64))
