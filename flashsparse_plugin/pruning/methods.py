# SPDX-License-Identifier: Apache-2.0
"""The registry of pruning methods: a name, a score, and what the score needs to know."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .layers import Retained
from .magnitude import magnitude_scores
from .masks import apply_mask_
from .ria import ria_scores
from .rule import PruningRule
from .sparsegpt import prune_sparsegpt_, sparsegpt_scores
from .statistics import GRADIENTS, GRAM, INPUT_NORMS, STATISTICS, Statistics
from .taylor import taylor_scores
from .wanda import wanda_scores

Scores = Callable[[Tensor, Statistics], Tensor]
Solver = Callable[[Tensor, Statistics, PruningRule], tuple[Tensor, Tensor]]

# Above 0 and below the magnitude of any weight that is not zero.
_LEAST = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Method:
    """How the zeros of one weight are chosen.

    Attributes:
        name: What `prune` and the command line call it.
        scores: From a weight [out_features, in_features] and its statistics, the importance of each
            element: of the weight's shape, finite and not negative. The lowest are dropped.
        needs: Names of the statistics that the score reads (see `Statistics`).
        scope: The set among which the lowest are chosen unless the user says otherwise: "layer"
            (a weight) or "row" (an output feature).
        comparable: Whether scores of different layers mean the same (scope "global").
        power: To which scores are what is lost with an element: 2 where they are of the size of
            outputs, 1 where they are of that of a loss.
        solver: Prunes a weight in place and changes what it keeps; returns scores and mask. None
            for a method that leaves what it keeps as it is.
    """

    name: str
    scores: Scores
    needs: Collection[str] = field(default=())
    scope: str = "row"
    comparable: bool = False
    power: int = 2
    solver: Solver | None = None

    def __post_init__(self) -> None:
        unknown = set(self.needs) - set(STATISTICS)
        if unknown:
            raise ValueError(
                f"method {self.name!r} needs {', '.join(sorted(unknown))}, but the statistics of a "
                f"layer are {', '.join(STATISTICS)}"
            )
        if self.scope not in ("layer", "row"):
            raise ValueError(f"method {self.name!r} has the scope {self.scope!r}: 'layer' or 'row'")

    @property
    def needs_inputs(self) -> bool:
        return bool({INPUT_NORMS, GRAM} & set(self.needs))

    @property
    def needs_gradients(self) -> bool:
        return GRADIENTS in self.needs

    def ranked(self, weight: Tensor, statistics: Statistics) -> Tensor:
        """Returns the scores, float32, with existing zeros below all other elements.

        Raises:
            ValueError: Naming the layer and the method, for scores that rank nothing.
        """
        scores = self.scores(weight, statistics).detach().float()
        if scores.shape != weight.shape or not bool((scores >= 0).all()):  # false for NaN
            raise ValueError(
                f"{statistics.name}: the scores of method {self.name!r} must be a matrix "
                f"{list(weight.shape)} without NaN and negative values, and are {scores.dtype} "
                f"{list(scores.shape)} with {int((~(scores >= 0)).sum())} of them"
            )
        return scores.clamp(min=_LEAST).masked_fill_(weight == 0, 0)

    @torch.no_grad()
    def prune_(self, weight: Tensor, statistics: Statistics, rule: PruningRule) -> Retained:
        """Prunes one weight [out_features, in_features] in place.

        Returns:
            How much of the scores is left.
        """
        if self.solver is not None:
            scores, keep = self.solver(weight, statistics, rule)
        else:
            scores = self.ranked(weight, statistics)
            keep = rule.keep_mask(scores, self.power)
            apply_mask_(weight, keep)
        return rule.retained(scores, keep, self.scope)


def _wanda(weight: Tensor, statistics: Statistics) -> Tensor:
    assert statistics.input_norms is not None
    return wanda_scores(weight, statistics.input_norms)


def _ria(weight: Tensor, statistics: Statistics) -> Tensor:
    assert statistics.input_norms is not None
    return ria_scores(weight, statistics.input_norms)


_METHODS = {
    method.name: method
    for method in (
        Method("wanda", _wanda, [INPUT_NORMS]),
        Method("ria", _ria, [INPUT_NORMS], scope="layer"),
        Method("sparsegpt", sparsegpt_scores, [GRAM], "layer", power=1, solver=prune_sparsegpt_),
        Method("taylor", taylor_scores, [GRADIENTS], "layer", comparable=True, power=1),
        Method("magnitude", lambda w, _: magnitude_scores(w), scope="layer", comparable=True),
    )
}


def method_names() -> list[str]:
    """The names of all methods, the built-in ones first."""
    return list(_METHODS)


def get_method(name: str) -> Method:
    """Returns a method by its name.

    Raises:
        ValueError: For an unknown name; the message lists the known ones.
    """
    if name not in _METHODS:
        known = ", ".join(map(repr, _METHODS))
        raise ValueError(f"method {name!r} is invalid: choose one of {known}")
    return _METHODS[name]


def register_method(
    name: str, needs: Collection[str] = (), scope: str = "row", comparable: bool = False
) -> Callable[[Scores], Scores]:
    """Registers a function as a pruning method, as a decorator.

    Args:
        name: A name that no other method has.
        needs: What the function reads of its statistics: "input_norms", "gram", "gradients".
        scope: "row" or "layer", where the lowest scores are chosen by default.
        comparable: Whether scores of different layers may be compared (scope "global").

    Raises:
        ValueError: For a name that is taken, or a statistic that does not exist.
    """

    def register(scores: Scores) -> Scores:
        if name in _METHODS:
            raise ValueError(f"there is a method {name!r} already: choose another name")
        _METHODS[name] = Method(name, scores, tuple(needs), scope, comparable)
        return scores

    return register
