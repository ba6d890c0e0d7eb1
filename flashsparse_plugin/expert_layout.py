# SPDX-License-Identifier: Apache-2.0
"""How a module of transformers keeps the matrices of all its experts in one parameter.

Each class of experts says so by flags, which transformers' decorator sets: whether matrices are
transposed, and whether the rows of gate and up follow each other or alternate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

SIDES = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
"""By the name of a parameter of experts, the projections in each expert's matrix, in order."""


@dataclass(frozen=True)
class Layout:
    """Where an expert's projections are in the parameter that holds all experts.

    Attributes:
        transposed: Each matrix is [in_features, out_features].
        interleaved: Rows of gate and up alternate; else those of gate come first.
    """

    transposed: bool = False
    interleaved: bool = False

    def matrices(self, parameter: Tensor, sides: int) -> Tensor:
        """The projections of all experts: a view [experts, sides, out_features, in_features].

        Args:
            parameter: [experts, sides * out_features, in_features], or transposed.
            sides: Projections in a matrix: 2 of gate and up, else 1.
        """
        return self.apart(parameter.transpose(1, 2) if self.transposed else parameter, sides)

    def parameter(self, matrices: Tensor) -> Tensor:
        """The inverse of `matrices`, contiguous."""
        whole = self.together(matrices)
        return (whole.transpose(1, 2) if self.transposed else whole).contiguous()

    def apart(self, rows: Tensor, sides: int) -> Tensor:
        """Splits dimension 1, of the rows of a matrix: [experts, sides, out_features, ...]."""
        if self.interleaved:
            return rows.unflatten(1, (-1, sides)).transpose(1, 2)
        return rows.unflatten(1, (sides, -1))

    def together(self, projections: Tensor) -> Tensor:
        """The inverse of `apart`."""
        return (projections.transpose(1, 2) if self.interleaved else projections).flatten(1, 2)

    def gate_first(self, bias: Tensor, sides: int) -> Tensor:
        """Biases [experts, sides * out_features] with those of gate before those of up."""
        return self.apart(bias, sides).flatten(1, 2)

    def as_in_module(self, both: Tensor) -> Tensor:
        """Outputs of gate and up [tokens, 2 * out_features], side by side, as in the module."""
        return self.together(both.unflatten(1, (2, -1)))


def layout_of(module: Any) -> Layout | None:
    """How a module of experts keeps their matrices; None where its class does not say.

    None, too, for a class that computes what transformers' decorator does not know: DBRX and
    Llama 4, which multiply in ways of their own, and a norm after each expert.
    """
    transposed = getattr(module, "is_transposed", None)
    concatenated = getattr(module, "is_concatenated", None)
    if not isinstance(transposed, bool) or not isinstance(concatenated, bool):
        return None
    if getattr(module, "has_post_expert_norm", False):
        return None
    applies = "_apply_gate" if getattr(module, "has_gate", True) else "act_fn"
    return Layout(transposed, not concatenated) if hasattr(module, applies) else None


def experts_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights that hold all experts of a layer, by name.

    A module of experts knows how many there are, and so do the first dimensions of its weights.
    DBRX puts the matrices of its experts one below the other, and calls their number otherwise.
    """
    found = {}
    for name, module in model.named_modules():
        count = getattr(module, "num_experts", None)
        below = getattr(module, "moe_num_experts", None)
        for own, parameter in module.named_parameters(recurse=False):
            stacked = parameter.dim() > 2 and isinstance(count, int) and len(parameter) == count
            joined = parameter.dim() == 2 and isinstance(below, int) and not len(parameter) % below
            if stacked or joined:
                found[f"{name}.{own}"] = parameter
    return found
