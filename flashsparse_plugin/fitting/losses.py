# SPDX-License-Identifier: Apache-2.0
"""What a layer loses by each choice: the error of its outputs on calibration text, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..formats.values.quantization import Quantization
from ..modules import weight_of
from ..packed import FormatError
from ..pruning.fisher import fisher_information
from ..pruning.gathering import gathering
from ..pruning.layers import check_weight
from ..pruning.methods import get_method
from ..pruning.relay import Relay, decoder_layers, evaluating, inside
from ..pruning.rounding import energies, round_weight
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
        error: |W X - W' X|^2 / |W X|^2 over the calibration text.
        loss: By how many nats a token the model's predictions move, estimated.
        density: Share of its weights that are not zero.
    """

    choice: Choice
    nbytes: int
    error: float
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
    stored: torch.dtype | None = None,
) -> dict[str, list[Measured]]:
    """Makes every choice for every layer and compares outputs; the model stays as it is.

    Codes of 4 bits are those that `flashsparse round` finds.

    Each layer is judged by the inputs that it has in the dense model, so that the choices of others
    do not matter. One decoder layer's statistics are in memory at a time. The same error of outputs
    costs more in one layer than in another, and in one output than in another: see
    `fisher_information`.

    Args:
        model: A causal language model.
        linears: The layers, by name; those outside of the decoder layers are left out.
        batches: Token ids, int64 [samples, length] each, on the model's device.
        choices: What may become of a layer. A format that refuses a layer is left out there.
        method: How zeros are chosen, by its name; by inputs alone.
        progress: Show a progress bar.
        stored: The dtype that weights are packed in; None: that of the model.

    Returns:
        By layer, its choices.
    """
    layers, found = decoder_layers(model), dict[str, list[Measured]]()
    information = fisher_information(model, linears, batches, progress)
    tokens = sum(batch.numel() for batch in batches)
    relay = Relay(model, layers, batches)
    with evaluating(model):
        for index, layer in enumerate(tqdm(layers, "losses", unit="layer", disable=not progress)):
            here = inside(layer, linears)
            with gathering(here, (GRAM, INPUT_NORMS)) as seen:
                relay.run(index, store=True)
            for name, each in here.items():
                weight = weight_of(each).detach()
                weight = weight.to(stored or weight.dtype)
                check_weight(name, weight)
                statistics = seen.pop(name).statistics(None)
                costs = information[name] / (2 * tokens)
                found[name] = _measure(weight, statistics, costs, choices, method)
    return found


def _measure(
    weight: Tensor, statistics: Statistics, costs: Tensor, choices: Sequence[Choice], method: str
) -> list[Measured]:
    gram = statistics.gram
    assert gram is not None
    whole = float(energies(weight.float(), gram).sum()) or 1.0
    pruned: dict[PruningRule | None, Tensor] = {None: weight}
    for rule in dict.fromkeys(choice.rule for choice in choices if choice.rule is not None):
        pruned[rule] = weight.clone()
        get_method(method).prune_(pruned[rule], statistics, rule)
    rounded = _rounded(pruned, statistics, choices)
    found = []
    for choice in choices:
        kept = rounded.get((choice.rule, choice.rounding), pruned[choice.rule])
        nbytes, held = kept.nbytes, kept
        try:
            if (scheme := choice.scheme(weight.dtype)) is not None:
                packed = scheme.format.pack(kept, scheme)
                nbytes, held = packed.nbytes, packed.unpack()
        except FormatError:  # this layer cannot be that
            continue
        wrong = energies(weight.float() - held.float(), gram)
        error, loss = float(wrong.sum()) / whole, float((wrong * costs).sum())
        density = int(held.count_nonzero()) / held.numel()
        found.append(Measured(choice, nbytes, error, loss, density))
    return found


def _rounded(
    pruned: Mapping[PruningRule | None, Tensor], statistics: Statistics, choices: Sequence[Choice]
) -> dict[tuple[PruningRule | None, Quantization | None], Tensor]:
    """What `flashsparse round` makes of a layer, by its zeros and its codes.

    Rows are rounded each by itself, so that those of all zeros go together.
    """
    found: dict[tuple[PruningRule | None, Quantization | None], Tensor] = {}
    for rounding in dict.fromkeys(choice.rounding for choice in choices):
        if rounding is not None:
            rules = [choice.rule for choice in choices if choice.rounding == rounding]
            together = torch.cat([pruned[rule] for rule in rules])
            made, *_ = round_weight(together, statistics, rounding)
            each = made.chunk(len(rules))
            found |= {(rule, rounding): own for rule, own in zip(rules, each, strict=True)}
    return found
