# SPDX-License-Identifier: Apache-2.0
"""Prune a whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..modules import weight_of
from ..names import LM_HEAD
from .allocation import UNIFORM, allocate, needs_text
from .blocks import share_dense
from .calibration import calibration_batches
from .experts import ExpertView
from .layers import PruneReport, Retained, check_weight, prunable_linears, report
from .layerwise import prune_each, prune_global
from .methods import Method, get_method
from .permutation import permute_
from .rule import PruningRule
from .sequential import change_in_order
from .statistics import Statistics
from .taylor import loss_gradients

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    allocation: str = UNIFORM,
    permute: bool = False,
    router_weighted: bool = False,
    dense: float = 0.0,
    rules: Mapping[str, PruningRule] | None = None,
) -> PruneReport:
    """Set the least important weights of a model to zero, in place.

    Every linear layer is pruned except those that `ignore` matches, and so is each projection of
    each expert of a mixture, by the tokens that are routed to it. An expert that fewer than 64
    calibration tokens reach is pruned by all tokens of its layer, and named in the report. Weights
    that are kept stay the same bit for bit, but for a method that updates them ("sparsegpt"). Of
    `count` elements of the scope exactly round(sparsity * count) are zero afterwards (halves to
    even), or more if more were zero before: existing zeros are dropped first and count. Equal
    scores are dropped in row-major order, layers in the model's order.

    Args:
        model: Any model of transformers in float16, bfloat16 or float32; for methods that need
            calibration one that takes tokens, in a stack of decoder layers.
        method: "magnitude" drops the smallest weights. "wanda" (arXiv 2306.11695) weighs them by
            the size of their inputs on calibration text, which costs a forward pass or two and
            gives far better models; "ria" (ICLR 2024) also relates them to their row and column;
            "sparsegpt" (arXiv 2301.00774) changes what is kept to make up for what is dropped;
            "taylor" weighs them by the gradient of the loss. Or one of your own, see
            `register_method`.
        sparsity: The share of zeros, 0..1; None for 0.5, or for what `pattern` implies. With an
            allocation other than "uniform", that of all layers together.
        scope: The set among which the least important are chosen: "layer" (a weight; the default of
            all methods but wanda), "row" (an output feature; the default of "wanda") or "global"
            (all weights together; "magnitude" and "taylor" only).
        pattern: (n, m) keeps n of every m consecutive input features instead, n <= m <= 256.
        vector_length: Consecutive output features that share the choice of a pattern.
        calibration: Token ids, int64 [samples, length], see `calibration_windows`.
        ignore: Layers left dense: names, which may be shortened from the left at a dot, and
            `re:` patterns. "lm_head" means the output head whatever its name.
        batch_size: Calibration samples a forward pass.
        progress: Show a progress bar.
        allocation: How the zeros are shared among decoder layers: "uniform", "owl" (by outliers) or
            "sensitivity" (by measured loss); see `allocation.allocate`.
        permute: Reorder the hidden channels of feed-forward networks first, so that `pattern` keeps
            more of them. The model computes the same, with rows and columns in other places.
            Experts keep their order.
        router_weighted: Whether the inputs of experts count by the weights that the router gives
            them (MoE-Pruner, arXiv 2410.12013); for methods that read inputs.
        dense: With the pattern 2:4, the share of elements, over all layers, in blocks of 16 x 256
            that stay dense: those whose layers' outputs would lose most, see `blocks.share_dense`.
        rules: By layer, how to prune it, in place of all that says it otherwise. Layers that are
            not among them keep every weight.

    Returns:
        The sparsity reached and the share of the scores that is left, layer by layer.

    Raises:
        ValueError: For an invalid rule, layer or calibration, before any weight is changed; and,
            naming the layer, if every activation of a layer is NaN or infinite (the layers before
            it are pruned then).
    """
    chosen = get_method(method)
    if scope is None and pattern is None:
        scope = chosen.scope
    _check(chosen, scope, pattern, calibration, allocation)
    if router_weighted and not chosen.needs_inputs:
        raise ValueError(
            f"{method} reads no inputs that the router could weigh: use method='wanda', or leave "
            "router_weighted out"
        )
    if permute and pattern is None:
        raise ValueError(
            "permute spreads columns over the windows of a pattern: give pattern=(n, m)"
        )
    rule = PruningRule(sparsity, scope, pattern, vector_length, dense)
    linears = prunable_linears(model, ignore, experts=True)
    if rules is not None:
        linears = _named(linears, rules)
    for name, linear in linears.items():
        check_weight(name, weight_of(linear))
    batches: Sequence[torch.Tensor] = ()
    if calibration is not None:
        batches = calibration_batches(model, calibration, batch_size)
    rules = dict.fromkeys(linears, rule) if rules is None else rules
    if allocation != UNIFORM:
        assert rule.sparsity is not None  # every rule with a scope has one
        shares = allocate(allocation, model, linears, rule.sparsity, batches, progress)
        rules = {name: replace(rule, sparsity=share) for name, share in shares.items()}
    if permute:
        modules = {name: x for name, x in linears.items() if not isinstance(x, ExpertView)}
        permute_(model, modules, rule, batches)
    if dense:
        found = share_dense(model, linears, dense, batches, progress)
        rules = {name: replace(rule, sparsity=None, dense=own) for name, own in found.items()}
    gradients: Mapping[str, torch.Tensor] = {}
    if chosen.needs_gradients:
        windows = [window for batch in batches for window in batch.split(1)]
        gradients = loss_gradients(model, linears, windows, progress)
    if chosen.needs_inputs:

        def prune_one(name: str, weight: torch.Tensor, statistics: Statistics) -> Retained:
            return chosen.prune_(weight, statistics, rules[name])

        retained, few = change_in_order(
            model,
            linears,
            prune_one,
            chosen.needs,
            batches,
            gradients,
            method,
            progress,
            router_weighted,
        )
        return report(method, linears, retained, few)
    return report(method, linears, _prune(linears, chosen, rules, gradients, progress))


def _named(
    linears: Mapping[str, nn.Module], rules: Mapping[str, PruningRule]
) -> dict[str, nn.Module]:
    """The layers that rules name, in the model's order.

    Raises:
        ValueError: For a name of no layer.
    """
    unknown = rules.keys() - linears.keys()
    if unknown:
        raise ValueError(
            f"the rules name {min(unknown)!r}, which is no linear layer of the model, or one that "
            "is left dense: make the recipe for this model"
        )
    return {name: linear for name, linear in linears.items() if name in rules}


def _prune(
    linears: Mapping[str, nn.Module],
    method: Method,
    rules: Mapping[str, PruningRule],
    gradients: Mapping[str, torch.Tensor],
    progress: bool,
) -> dict[str, Retained]:
    rule = next(iter(rules.values()))
    if rule.scope == "global":
        assert rule.sparsity is not None
        return prune_global(linears, method, rule.sparsity, gradients, progress)
    return prune_each(linears, method, rules, gradients, progress)


def _check(
    method: Method,
    scope: str | None,
    pattern: tuple[int, int] | None,
    calibration: torch.Tensor | None,
    allocation: str,
) -> None:
    """Raises ValueError for choices that do not go together."""
    if scope == "global" and not method.comparable:
        raise ValueError(
            f"{method.name} scores of different layers cannot be compared: use scope 'row' or "
            "'layer'"
        )
    measured = needs_text(allocation)
    if measured and pattern is not None:
        raise ValueError(
            f"a pattern has the same sparsity in every layer, so that allocation={allocation!r} "
            "has nothing to share: leave one of the two out"
        )
    if measured and scope == "global":
        raise ValueError(
            f"scope 'global' shares the zeros among the layers by the scores, and "
            f"allocation={allocation!r} in another way: leave one of the two out"
        )
    reader = f"allocation={allocation!r}" if measured and not method.needs else method.name
    if calibration is None and (method.needs or measured):
        raise ValueError(
            f"{reader} needs calibration tokens: give calibration=calibration_windows(...)"
        )
    if calibration is not None and not (method.needs or measured):
        raise ValueError(f"{method.name} uses no calibration: leave it out, or use method='wanda'")
