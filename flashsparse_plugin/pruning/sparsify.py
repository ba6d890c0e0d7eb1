# SPDX-License-Identifier: Apache-2.0
"""sparsify_: prunes and packs the linear layers of any nn.Module in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..formats import get_format, read_format
from ..linear import SparseLinear
from ..modules import weight_of
from ..names import DEFAULT_FORMAT, LM_HEAD
from .gathering import gathering
from .layers import PruneReport, check_weight, prunable_linears, report
from .methods import Method, get_method
from .relay import evaluating
from .rule import PruningRule
from .statistics import Statistics

Batch = Tensor | Sequence[Any] | Mapping[str, Any]


@torch.no_grad()
def sparsify_(
    module: nn.Module,
    method: str = "magnitude",
    sparsity: float | None = None,
    *,
    pattern: tuple[int, int] | None = None,
    vector_length: int = 1,
    scope: str | None = None,
    calibration: Iterable[Batch] | None = None,
    ignore: Sequence[str] = (LM_HEAD,),
    format: str | None = DEFAULT_FORMAT,
    **options: Any,
) -> PruneReport:
    """Prunes the linear layers of a module and puts packed layers in their place.

    For a language model on disk `flashsparse prune` and `convert` do better: they prune each layer
    by the inputs that pruned predecessors give, with one layer in memory. Here all layers are
    pruned by the inputs that they have in the unpruned module, which is run once.

    Args:
        module: Any module; its nn.Linear are replaced. Of a dtype that `format` takes.
        method: A method's name, see `prune`; not one that needs gradients.
        sparsity: The share of zeros, 0..1; None for 0.5, or for what `pattern` implies.
        pattern: (n, m) keeps n of every m consecutive input features instead.
        vector_length: Consecutive output features that share the choice of a pattern.
        scope: "layer" or "row"; None for the method's own.
        calibration: Inputs of the module, for a method that needs them: tensors, or sequences or
            mappings of arguments. "sparsegpt" keeps in_features^2 floats for each layer.
        ignore: Layers left dense: names and `re:` patterns.
        format: The packed format; None leaves the layers dense, with zeros in them.
        **options: Options of the format, such as n=2, m=4 for "nm_vector".

    Returns:
        The sparsity reached, layer by layer.

    Raises:
        ValueError: For an invalid rule, method or layer, before anything is changed.
        FormatError: For a weight that the format cannot hold: by its dtype before anything is
            changed, by its values once the module is pruned.
    """
    chosen = get_method(method)
    _check(module, chosen, scope, calibration)
    if scope is None and pattern is None:
        scope = chosen.scope
    rule = PruningRule(sparsity, scope, pattern, vector_length)
    linears = prunable_linears(module, ignore)
    for name, linear in linears.items():
        check_weight(name, weight_of(linear))
        if format is not None:
            own, named = read_format(format, options)
            get_format(own).scheme(weight_of(linear).dtype, named)
    seen = _gather(module, linears, chosen, calibration or ())
    retained = {
        name: chosen.prune_(weight_of(linear), seen[name], rule) for name, linear in linears.items()
    }
    made = report(method, linears, retained)
    if format is not None:
        for name, linear in linears.items():
            module.set_submodule(name, SparseLinear.from_linear(linear, format, **options))
    return made


def _check(
    module: nn.Module, method: Method, scope: str | None, calibration: Iterable[Batch] | None
) -> None:
    if isinstance(module, nn.Linear):
        raise ValueError(
            "a layer cannot be replaced in itself: give the module that holds it, or prune it with "
            "pruning.prune_weight and pack it with SparseLinear.from_linear"
        )
    if method.needs_gradients:
        raise ValueError(
            f"{method.name} needs the gradient of a loss, which a plain module does not have: use "
            "pruning.prune on a causal language model, or another method"
        )
    if scope == "global":
        raise ValueError("scope 'global' is for pruning.prune: choose 'layer' or 'row'")
    if method.needs_inputs and calibration is None:
        raise ValueError(f"{method.name} needs inputs of the module: give calibration=[x, ...]")
    if not method.needs_inputs and calibration is not None:
        raise ValueError(f"{method.name} uses no calibration: leave it out, or use method='wanda'")


def _gather(
    module: nn.Module,
    linears: Mapping[str, nn.Module],
    method: Method,
    calibration: Iterable[Batch],
) -> dict[str, Statistics]:
    """The statistics of all layers, from one run of the module on each batch."""
    if not method.needs_inputs:
        return {name: Statistics(name) for name in linears}
    with gathering(linears, method.needs) as seen, evaluating(module):
        for batch in calibration:
            if isinstance(batch, Tensor):
                module(batch)
            elif isinstance(batch, Mapping):
                module(**batch)
            else:
                module(*batch)
    return {name: inputs.statistics() for name, inputs in seen.items()}
