# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are linear layers, and where they keep their weight.

A module is one by what its forward computes, which is known for `nn.Linear` and for the few classes
that are listed here. Nothing is run to find out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

# Classes that compute x @ weight.T + bias by code of their own, or, where True, x @ weight + bias
# with a weight [in_features, out_features]. By name, so that transformers need not be imported.
_ALIKE = {
    "transformers.models.falcon.modeling_falcon.FalconLinear": False,
    "transformers.pytorch_utils.Conv1D": True,
}


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by its weight and adds its bias, and nothing else."""
    kind = type(module)
    if _name(kind) in _ALIKE:
        return True
    return isinstance(module, nn.Linear) and not why_not_linear(module)


def why_not_linear(module: nn.Module) -> str | None:
    """Why a subclass of nn.Linear is not treated as one; None where it is."""
    kind = type(module)
    if _name(kind) in _ALIKE:
        return None
    if kind is NonDynamicallyQuantizableLinear:
        return "nn.MultiheadAttention reads its weight itself"
    if kind.forward is not nn.Linear.forward:
        return f"its class {kind.__name__} may compute something else than nn.Linear"
    return None


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as [in_features, out_features] (Conv1D)."""
    return _ALIKE.get(_name(type(module)), False)


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a linear layer as [out_features, in_features]; a view of it."""
    weight = stored_weight(module)
    return weight.T if is_transposed(module) else weight


def stored_weight(module: nn.Module) -> Tensor:
    """The weight of a linear layer as the module keeps it, and as checkpoints do."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def bias_of(module: nn.Module) -> Tensor | None:
    """The bias of a linear layer, if it has one."""
    bias = module.bias
    assert bias is None or isinstance(bias, Tensor)
    return bias


def shape_of(module: nn.Module) -> tuple[int, int]:
    """(out_features, in_features) of a linear layer."""
    rows, columns = weight_of(module).shape
    return rows, columns


def linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The linear layers of a model, by name and in its order."""
    return {name: module for name, module in model.named_modules() if is_linear(module)}


def as_kind(kind: type[nn.Module], linear: nn.Linear) -> nn.Module:
    """Returns a layer of the class `kind`, a linear one, with the parameters of `linear`."""
    if kind is nn.Linear:
        return linear
    rows, columns = linear.weight.shape
    turned = _ALIKE.get(_name(kind), False)
    with torch.device("meta"):
        made = kind(rows, columns) if turned else kind(columns, rows)
    weight = linear.weight.detach()
    made.weight = nn.Parameter(weight.T.contiguous() if turned else weight, requires_grad=False)
    made.bias = linear.bias
    return made.train(linear.training)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
