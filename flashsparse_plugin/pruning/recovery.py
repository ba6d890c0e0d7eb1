# SPDX-License-Identifier: Apache-2.0
"""Recovery: what is kept of a pruned model makes up for what was dropped.

`LeastSquares` trains nothing. Decoder layer by decoder layer, the kept elements of each pruned
weight are fitted so that its outputs on calibration text match those that the dense weight would
give for the same inputs, which are those of the recovered predecessors (Boza, "Fast and effective
weight update for pruned LLMs", 2024, arXiv 2401.02938, with conjugate gradients in the place of
ADMM). Only the statistics of one decoder layer are in memory at a time.

`LoRA` trains low-rank updates of all layers together; see lora.py. With both, zeros stay zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..modules import is_linear, linear_modules, shape_of, weight_of
from .calibration import calibration_batches
from .experts import ExpertView, expert_views
from .gathering import gathering
from .layers import check_weight
from .least_squares import LeastSquares, fit_kept
from .lora import LoRA, Training
from .relay import Relay, decoder_layers, evaluating, inside
from .statistics import GRAM

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """How far outputs are from what they should be.

    Attributes:
        name: The layer; empty for the model, of which LoRA measures the whole.
        before: Of a layer |W_0 X - W X|^2 / |W X|^2 of the pruned weight W_0 and the dense one W,
            or of a weight rounded to the nearest codes and the one before; of the model the
            divergence of its next-token distribution from the dense model's, in nats a token.
        after: The same of the recovered weights, as they are stored, or of compensated codes.
    """

    name: str
    before: float
    after: float


Restore = Callable[[int], "list[Fit] | None"]


def recover_(
    pruned: PreTrainedModel,
    dense: PreTrainedModel,
    calibration: Tensor,
    method: LeastSquares | LoRA | None = None,
    batch_size: int = 8,
    on_progress: Callable[[int, int], None] | None = None,
    stored: torch.dtype | None = None,
) -> list[Fit]:
    """Changes the kept weights of a pruned model so that they make up for the others, in place.

    The linear layers of its decoder layers that have zeros are changed; all zeros stay, and a
    weight or, with LoRA, a model that would become worse stays as it is. The result is the same
    from run to run on the same machine.

    Args:
        pruned: The pruned model, with its zeros in place, in float16, bfloat16 or float32.
        dense: The model before it was pruned, which is only read.
        calibration: Token ids, int64 [samples, length], see `calibration_windows`. More tokens than
            a layer has inputs are wanted; the more zeros, the more tokens.
        method: How to recover; None means `LeastSquares()`.
        batch_size: Calibration samples a forward pass of `LeastSquares`.
        on_progress: Called with the decoder layers, or steps of LoRA, that are done, and their
            total.
        stored: The dtype that weights will be stored in, to which LoRA rounds as it trains; None:
            that of the pruned model.

    Returns:
        How far outputs are from the dense model's, before and after: by layer, or with LoRA those
        of the model.

    Raises:
        ValueError: If the models do not belong together, nothing is pruned, or the method does not
            fit them, before any weight is changed; and, naming the layer, for activations that are
            NaN or infinite.
    """
    report = on_progress or (lambda *_: None)
    if isinstance(method, LoRA):
        names = [name for group in pruned_layers(pruned, dense) for name in group]
        training = Training(pruned, dense, trainable(names, pruned), calibration, method, stored)
        for step in training.run():
            report(step, method.steps)
        return [Fit("", *training.merge_())]
    fits = []
    total = len(decoder_layers(pruned))
    walk = recover_layers(pruned, dense, calibration, method, batch_size)
    for done, layer in enumerate(walk, start=1):
        fits += layer
        report(done, total)
    return fits


@torch.no_grad()
def recover_layers(
    pruned: PreTrainedModel,
    dense: PreTrainedModel,
    calibration: Tensor,
    method: LeastSquares | None = None,
    batch_size: int = 8,
    restore: Restore = lambda _: None,
) -> Iterator[list[Fit]]:
    """As `recover_` by least squares, one decoder layer at each iteration.

    Args:
        restore: Asked for each decoder layer by its number: puts weights that were fitted before
            into the pruned model and returns their fits, or None where the layer is to be fitted.

    Yields:
        The fits of a decoder layer, once its weights are changed.
    """
    method = method or LeastSquares()
    groups = pruned_layers(pruned, dense)
    batches = calibration_batches(pruned, calibration, batch_size)
    relay = Relay(pruned, decoder_layers(pruned), batches)
    ours, theirs = recoverable(pruned), recoverable(dense)
    for index, group in enumerate(groups):
        with evaluating(pruned):
            fits = restore(index)
            if fits is None:
                pairs = {name: (ours[name], theirs[name]) for name in group}
                fits = _fit_layer_(relay, index, pairs, method)
            if index + 1 < len(groups):
                relay.run(index, store=True)
        yield fits


def _fit_layer_(
    relay: Relay,
    index: int,
    pairs: Mapping[str, tuple[nn.Module, nn.Module]],
    method: LeastSquares,
) -> list[Fit]:
    """Fits the linear layers of one decoder layer."""
    with gathering({name: ours for name, (ours, _) in pairs.items()}, [GRAM]) as seen:
        relay.run(index)
    fits = []
    for name, (ours, theirs) in pairs.items():
        inputs = seen.pop(name)
        weight, gram = weight_of(ours), inputs.statistics().gram
        assert gram is not None
        # The router sends an expert fewer tokens than a layer has, which it would learn by heart.
        enough = not isinstance(ours, ExpertView) or inputs.tokens >= weight.shape[1]
        fits.append(_fit_(name, weight, weight_of(theirs), gram, method, enough))
    return fits


def _fit_(
    name: str, weight: Tensor, dense: Tensor, gram: Tensor, method: LeastSquares, enough: bool
) -> Fit:
    """Puts the fitted weight in the place of a pruned one, where it is the better one.

    Without `enough` tokens it stays as it is.
    """
    target = dense.to(weight.device, torch.float32)
    cross = target @ gram

    def squares(w: Tensor, product: Tensor) -> float:
        return float((w * product).sum(dtype=torch.float64))

    size = squares(target, cross)

    def error(w: Tensor) -> float:
        difference = w.float() - target
        return max(0.0, squares(difference, difference @ gram)) / size if size > 0 else 0.0

    before = error(weight)
    if not enough:
        return Fit(name, before, before)
    fitted = fit_kept(weight, gram, cross, method.ridge, method.steps).to(weight.dtype)
    after = error(fitted)
    if not after < before:
        return Fit(name, before, before)
    weight.copy_(fitted)
    return Fit(name, before, after)


def few_tokens(pruned: PreTrainedModel, calibration: Tensor) -> str | None:
    """Returns what to say of calibration that a layer can be fitted to by heart; None for enough.

    Args:
        pruned: The pruned model.
        calibration: Token ids, int64 [samples, length].
    """
    inside = decoder_layers(pruned).named_modules()
    inputs = {name: shape_of(each)[1] for name, each in inside if is_linear(each)}
    widest = max(inputs, key=lambda name: inputs[name], default=None)
    if widest is None or calibration.numel() >= inputs[widest]:
        return None
    return (
        f"the calibration has {calibration.numel():,} tokens, fewer than the {inputs[widest]:,} "
        f"inputs of {widest.rpartition('.')[2]}: the fit will follow these tokens and not the "
        "language. Give more, by --samples and --length"
    )


def recoverable(model: nn.Module) -> dict[str, nn.Module]:
    """The linear layers of a model, and its experts."""
    return {**linear_modules(model), **expert_views(model)}


def trainable(names: Sequence[str], pruned: PreTrainedModel) -> list[str]:
    """Those of the pruned layers that LoRA trains: all but experts, which keep what they have.

    Raises:
        ValueError: Where nothing else is pruned.
    """
    linears = linear_modules(pruned)
    found = [name for name in names if name in linears]
    if not found:
        raise ValueError(
            "only experts are pruned, and LoRA trains none. Remedy: recover by least squares "
            "(--method least-squares), which fits experts, too"
        )
    if len(found) < len(names):
        logger.warning(
            "LoRA trains no experts: %d projections of experts stay as they are. Least squares "
            "fits them, too",
            len(names) - len(found),
        )
    return found


_ALMOST_NONE = 0.01
"""Of a weight's elements. Zeros by chance are fewer, those of a pruned layer more."""


@torch.no_grad()
def _refuse_swapped(pruned: PreTrainedModel, dense: PreTrainedModel) -> None:
    """Raises ValueError where the pruned model has almost no zeros, or fewer than the dense one."""

    def shares(model: PreTrainedModel) -> list[float]:
        linears = recoverable(decoder_layers(model)).values()
        return [float((weight_of(each) == 0).float().mean()) for each in linears]

    ours, theirs = shares(pruned), shares(dense)
    if max(ours) >= _ALMOST_NONE and sum(ours) > sum(theirs):
        return
    if not max(*ours, *theirs):
        raise ValueError(
            "no layer of the pruned model has zeros: prune it first (`flashsparse prune`)"
        )
    names = [model.name_or_path or what for model, what in ((pruned, "PRUNED"), (dense, "DENSE"))]
    found = [f"{sum(each) / len(each):.1%}" for each in (ours, theirs)]
    remedy = "the first is to be the model that `flashsparse prune` wrote, the second the dense one"
    if max(theirs) >= _ALMOST_NONE and sum(ours) < sum(theirs):
        remedy = f"swap them: flashsparse recover {names[1]} {names[0]} OUT --calibration TEXT"
    raise ValueError(
        f"{names[0]} is given as the pruned model and {found[0]} of its weights are zero, and of "
        f"{names[1]}, the dense one, {found[1]} are. Remedy: {remedy}"
    )


def pruned_layers(pruned: PreTrainedModel, dense: PreTrainedModel) -> list[list[str]]:
    """Returns the names of the layers to fit, decoder layer by decoder layer.

    Raises:
        ValueError: If the models differ in their layers, or none of them is pruned.
    """
    ours, theirs = recoverable(pruned), recoverable(dense)
    shapes = [{name: shape_of(lin) for name, lin in each.items()} for each in (ours, theirs)]
    for name in sorted(shapes[0].keys() | shapes[1].keys()):
        found, wanted = shapes[0].get(name, "missing"), shapes[1].get(name, "missing")
        if found != wanted:
            raise ValueError(
                f"{name} is {found} in the pruned model and {wanted} in the dense one: give the "
                "model that was pruned"
            )
    _refuse_swapped(pruned, dense)
    groups = []
    for layer in decoder_layers(pruned):
        own = inside(layer, ours)
        groups.append([n for n in own if bool((weight_of(ours[n]) == 0).any())])
    for name in (name for group in groups for name in group):
        check_weight(name, weight_of(ours[name]))
        check_weight(name, weight_of(theirs[name]))
    return groups
