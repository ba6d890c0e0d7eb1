# SPDX-License-Identifier: Apache-2.0
"""Prune a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..modules import weight_of
from ..names import LM_HEAD
from .layers import (
    PruneReport,
    check_weight,
    prunable_linears,
    report,
)
from .magnitude import prune_magnitude
from .rule import PruningRule
from .wanda import prune_wanda

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHODS = ("magnitude", "wanda")


def prune(
    model: PreTrainedModel,
    method: str = "magnitude",
    sparsity: float | None = None,
    scope: str | None = None,
    pattern: tuple[int, int] | None = None,
    vector_length: int = 1,
    calibration: torch.Tensor | None = None,
    ignore: Sequence[str] = (LM_HEAD,),
    batch_size: int = 8,
    progress: bool = True,
) -> PruneReport:
    """Set the least important weights of a model to zero, in place.

    Every linear layer is pruned except those that `ignore` matches. Weights that are kept stay the
    same bit for bit. Of `count` elements of the scope exactly round(sparsity * count) are zero
    afterwards (halves to even), or more if more were zero before: existing zeros are dropped first
    and count. Equal scores are dropped in row-major order, layers in the model's order.

    Args:
        model: Any model of transformers in float16, bfloat16 or float32; for "wanda" one that
            takes tokens, in a stack of decoder layers.
        method: "magnitude" drops the smallest weights; "wanda" (arXiv 2306.11695) weighs them by
            the size of their inputs on calibration text, which costs a forward pass or two and
            gives far better models.
        sparsity: The share of zeros, 0..1; None for 0.5, or for what `pattern` implies.
        scope: The set among which the least important are chosen: "layer" (a weight; the default of
            "magnitude"), "row" (an output feature; the default of "wanda") or "global" (all
            weights together; "magnitude" only).
        pattern: (n, m) keeps n of every m consecutive input features instead, n <= m <= 256.
        vector_length: Consecutive output features that share the choice of a pattern.
        calibration: Token ids for "wanda", int64 [samples, length], see `calibration_windows`.
        ignore: Layers left dense: names, which may be shortened from the left at a dot, and
            `re:` patterns. "lm_head" means the output head whatever its name.
        batch_size: Calibration samples a forward pass.
        progress: Show a progress bar.

    Returns:
        The sparsity reached and the share of the scores that is left, layer by layer.

    Raises:
        ValueError: For an invalid rule, layer or calibration, before any weight is changed; and,
            naming the layer, if every activation of a layer is NaN or infinite (the layers before
            it are pruned then).
    """
    if method not in METHODS:
        raise ValueError(
            f"method {method!r} is invalid: choose one of {', '.join(map(repr, METHODS))}"
        )
    if scope is None and pattern is None:
        scope = "row" if method == "wanda" else "layer"
    if method == "wanda" and scope == "global":
        raise ValueError(
            "wanda scores of different layers cannot be compared: use scope 'row' or 'layer'"
        )
    if (calibration is not None) != (method == "wanda"):
        raise ValueError(
            "wanda needs calibration tokens: give calibration=calibration_windows(...)"
            if method == "wanda"
            else "magnitude uses no calibration: leave it out, or use method='wanda'"
        )
    rule = PruningRule(sparsity, scope, pattern, vector_length)
    linears = prunable_linears(model, ignore)
    for name, linear in linears.items():
        check_weight(name, weight_of(linear))
    if calibration is None:
        retained = prune_magnitude(linears, rule, progress)
    else:
        retained = prune_wanda(model, linears, rule, calibration, batch_size, progress)
    return report(method, linears, retained)
