# SPDX-License-Identifier: Apache-2.0
"""The experts of a mixture, as layers that are pruned one by one.

A model of transformers holds all experts of a layer in two parameters of three dimensions. Each
projection of each expert is shown as a linear layer here, whose weight is a view of its parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..expert_layout import SIDES, Layout, experts_of, layout_of
from ..matching import matches

FEW_TOKENS = 64
"""Calibration tokens; an expert that fewer reached is judged by all tokens of its layer."""


class ExpertView(nn.Module):
    """One projection of one expert.

    Args:
        owner: The module of experts.
        parameter: The name of its parameter in the model.
        number: Which expert.
        side: Which of the projections that an expert has in the parameter.
        sides: How many they are.
        layout: How the parameter keeps them.

    Attributes:
        owner: See above; no part of this module.
        is_last: Whether it is the down projection.
    """

    bias = None

    def __init__(
        self,
        owner: nn.Module,
        parameter: str,
        number: int,
        side: int,
        sides: int,
        layout: Layout,
    ):
        super().__init__()
        self._owner = (owner,)  # in a tuple: a module would become a part
        self.parameter, self.number, self.side, self.sides = parameter, number, side, sides
        self.layout = layout
        self.is_last = parameter.rpartition(".")[2] == "down_proj"

    @property
    def owner(self) -> Any:
        return self._owner[0]

    @property
    def whole(self) -> Tensor:
        """The parameter, of all experts."""
        return self.owner._parameters[self.parameter.rpartition(".")[2]]

    def part(self, whole: Tensor) -> Tensor:
        """What of a tensor like the parameter is of this projection: a view."""
        return self.layout.matrices(whole, self.sides)[self.number, self.side]

    @property
    def weight(self) -> Tensor:
        """[out_features, in_features], a view of the parameter."""
        return self.part(self.whole)


def expert_views(model: nn.Module, ignore: Sequence[str] = ()) -> dict[str, ExpertView]:
    """The projections of all experts, by names such as "model.layers.3.mlp.experts.7.gate_proj".

    Args:
        model: A transformers model, or any module.
        ignore: Those to leave out; see `matching.matches`.
    """
    found: dict[str, ExpertView] = {}
    for parameter, weight in experts_of(model).items():
        module, _, own = parameter.rpartition(".")
        owner = model.get_submodule(module)
        layout = layout_of(owner)
        if own not in SIDES or weight.dim() != 3 or layout is None:
            continue
        sides = SIDES[own]
        for number in range(len(weight)):
            for side, name in enumerate(sides):
                full = f"{module}.{number}.{name}"
                if not any(matches(each, ignore) for each in (full, module)):
                    found[full] = ExpertView(owner, parameter, number, side, len(sides), layout)
    return found


def owner_of(layer: nn.Module) -> nn.Module:
    """The module of the model that a layer is, or is a part of."""
    return layer.owner if isinstance(layer, ExpertView) else layer


def by_owner(layers: Mapping[str, nn.Module]) -> list[dict[str, ExpertView]]:
    """The experts among some layers, by their modules."""
    found: dict[int, dict[str, ExpertView]] = {}
    for name, layer in layers.items():
        if isinstance(layer, ExpertView):
            found.setdefault(id(layer.owner), {})[name] = layer
    return list(found.values())


def expert_inputs(
    owner: Any, args: tuple, kwargs: Mapping[str, Any], numbers: Iterable[int], everyone: bool
) -> Iterator[tuple[int, Tensor, Tensor, Tensor | None]]:
    """What the projections of some experts multiply in a forward pass of their module.

    Args:
        owner: The module of experts.
        args: That its forward is given.
        kwargs: Likewise.
        numbers: The experts.
        everyone: Whether to send all tokens to each of them, whatever the router says.

    Yields:
        The expert, the inputs of gate and up [tokens, hidden], those of down [tokens,
        intermediate], and the router's weights [tokens, 1], where it has chosen.
    """
    given = inspect.signature(owner.forward).bind(*args, **kwargs).arguments
    hidden, ids, weights = list(given.values())[:3]
    x = hidden.detach().reshape(-1, hidden.shape[-1])
    ids, weights = (each.detach().reshape(len(x), -1) for each in (ids, weights))
    gated = owner.has_gate
    up = owner.gate_up_proj if gated else owner.up_proj
    bias = None
    if owner.has_bias:
        bias = owner.gate_up_proj_bias if gated else owner.up_proj_bias
    for number in numbers:
        rows, chosen = x, None
        if not everyone:
            token, slot = (ids == number).nonzero(as_tuple=True)
            if not len(token):
                continue
            rows, chosen = x[token], weights[token, slot, None].float()
        with torch.no_grad():
            matrix = up[number].T if owner.is_transposed else up[number]
            both = F.linear(rows, matrix, None if bias is None else bias[number])
            inner = owner._apply_gate(both) if gated else owner.act_fn(both)
        yield number, rows, inner, chosen
