# SPDX-License-Identifier: Apache-2.0
"""Recovery: what is kept of a pruned model makes up for what was dropped.

Decoder layer by decoder layer, the kept elements of each pruned weight are fitted by least squares
so that its outputs on calibration text match those that the dense weight would give for the same
inputs, which are those of the recovered predecessors (Boza, "Fast and effective weight update for
pruned LLMs", 2024, arXiv 2401.02938, with conjugate gradients in the place of ADMM). Nothing is
trained, zeros stay zero, and only the statistics of one decoder layer are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..modules import linear_modules, shape_of, weight_of
from .calibration import calibration_batches
from .layers import check_weight
from .least_squares import fit_kept
from .relay import Relay, decoder_layers, evaluating
from .statistics import GRAM, Inputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RIDGE = 0.1
STEPS = 10


@dataclass(frozen=True)
class Fit:
    """How far the outputs of a layer are from the dense weight's, over the size of these.

    Attributes:
        name: The layer.
        before: |W_0 X - W X|^2 / |W X|^2 of the pruned weight W_0 and the dense one W.
        after: The same of the fitted weight, as it is stored.
    """

    name: str
    before: float
    after: float


Restore = Callable[[int], "list[Fit] | None"]


def recover_(
    pruned: PreTrainedModel,
    dense: PreTrainedModel,
    calibration: Tensor,
    ridge: float = RIDGE,
    steps: int = STEPS,
    batch_size: int = 8,
    on_layer: Callable[[int, int], None] | None = None,
) -> list[Fit]:
    """Fits the kept weights of a pruned model to the dense model that it comes from, in place.

    The linear layers of its decoder layers that have zeros are changed; all zeros stay. The result
    is the same from run to run on the same machine.

    Args:
        pruned: The pruned model, with its zeros in place, in float16, bfloat16 or float32.
        dense: The model before it was pruned, of which only the weights are read.
        calibration: Token ids, int64 [samples, length], see `calibration_windows`. More tokens than
            a layer has inputs are wanted; the more zeros, the more tokens.
        ridge: How strongly weights are held where they are, against the mean size of the inputs.
        steps: Conjugate gradient steps for each weight.
        batch_size: Calibration samples a forward pass.
        on_layer: Called with the number of decoder layers that are done, and with their total.

    Returns:
        Errors before and after, layer by layer.

    Raises:
        ValueError: If the models do not belong together, or nothing is pruned, before any weight is
            changed; and, naming the layer, for activations that are NaN or infinite.
    """
    fits = []
    total = len(decoder_layers(pruned))
    walk = recover_layers(pruned, dense, calibration, ridge, steps, batch_size)
    for done, layer in enumerate(walk, start=1):
        fits += layer
        if on_layer is not None:
            on_layer(done, total)
    return fits


@torch.no_grad()
def recover_layers(
    pruned: PreTrainedModel,
    dense: PreTrainedModel,
    calibration: Tensor,
    ridge: float = RIDGE,
    steps: int = STEPS,
    batch_size: int = 8,
    restore: Restore = lambda _: None,
) -> Iterator[list[Fit]]:
    """As `recover_`, one decoder layer at each iteration.

    Args:
        restore: Asked for each decoder layer by its number: puts weights that were fitted before
            into the pruned model and returns their fits, or None where the layer is to be fitted.

    Yields:
        The fits of a decoder layer, once its weights are changed.
    """
    if ridge <= 0 or steps < 1:
        raise ValueError(f"ridge is {ridge} and steps {steps}: they must be above 0")
    groups = pruned_layers(pruned, dense)
    batches = calibration_batches(pruned, calibration, batch_size)
    relay = Relay(pruned, decoder_layers(pruned), batches)
    ours, theirs = linear_modules(pruned), linear_modules(dense)
    for index, group in enumerate(groups):
        with evaluating(pruned):
            fits = restore(index)
            if fits is None:
                pairs = {name: (ours[name], theirs[name]) for name in group}
                fits = _fit_layer_(relay, index, pairs, ridge, steps)
            if index + 1 < len(groups):
                relay.run(index, store=True)
        yield fits


def _fit_layer_(
    relay: Relay,
    index: int,
    pairs: Mapping[str, tuple[nn.Module, nn.Module]],
    ridge: float,
    steps: int,
) -> list[Fit]:
    """Fits the linear layers of one decoder layer."""
    seen = {name: Inputs(name, ours, [GRAM]) for name, (ours, _) in pairs.items()}
    hooks = [
        ours.register_forward_pre_hook(lambda _, args, own=seen[name]: own.add(args[0]))
        for name, (ours, _) in pairs.items()
    ]
    try:
        relay.run(index)
    finally:
        for hook in hooks:
            hook.remove()
    fits = []
    for name, (ours, theirs) in pairs.items():
        gram = seen.pop(name).statistics().gram
        assert gram is not None
        fits.append(_fit_(name, weight_of(ours), weight_of(theirs), gram, ridge, steps))
    return fits


def _fit_(name: str, weight: Tensor, dense: Tensor, gram: Tensor, ridge: float, steps: int) -> Fit:
    """Puts the fitted weight in the place of a pruned one, where it is the better one."""
    target = dense.to(weight.device, torch.float32)
    cross = target @ gram

    def squares(w: Tensor, product: Tensor) -> float:
        return float((w * product).sum(dtype=torch.float64))

    size = squares(target, cross)

    def error(w: Tensor) -> float:
        difference = w.float() - target
        return max(0.0, squares(difference, difference @ gram)) / size if size > 0 else 0.0

    fitted = fit_kept(weight, gram, cross, ridge, steps).to(weight.dtype)
    before, after = error(weight), error(fitted)
    if not after < before:
        return Fit(name, before, before)
    weight.copy_(fitted)
    return Fit(name, before, after)


def pruned_layers(pruned: PreTrainedModel, dense: PreTrainedModel) -> list[list[str]]:
    """Returns the names of the layers to fit, decoder layer by decoder layer.

    Raises:
        ValueError: If the models differ in their layers, or none of them is pruned.
    """
    ours, theirs = linear_modules(pruned), linear_modules(dense)
    shapes = [{name: shape_of(lin) for name, lin in each.items()} for each in (ours, theirs)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        found, wanted = shapes[0].get(name, "missing"), shapes[1].get(name, "missing")
        if found != wanted:
            raise ValueError(
                f"{name} is {found} in the pruned model and {wanted} in the dense one: give the "
                "very model that was pruned"
            )
    groups = []
    for layer in decoder_layers(pruned):
        members = {id(module) for module in layer.modules()}
        own = [name for name, linear in ours.items() if id(linear) in members]
        groups.append([n for n in own if bool((weight_of(ours[n]) == 0).any())])
    for name in (name for group in groups for name in group):
        check_weight(name, weight_of(ours[name]))
        check_weight(name, weight_of(theirs[name]))
    if not any(groups):
        raise ValueError(
            "no layer of the pruned model has zeros: prune it first (`flashsparse prune`)"
        )
    return groups
