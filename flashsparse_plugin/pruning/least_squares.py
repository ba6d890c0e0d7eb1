# SPDX-License-Identifier: Apache-2.0
"""Fitting the kept elements of a pruned weight so that its outputs match given ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .masks import apply_mask_


@dataclass(frozen=True)
class LeastSquares:
    """Recovery by fitting each pruned weight to the outputs of the dense one.

    Attributes:
        ridge: How strongly weights are held where they are, against the mean size of the inputs.
        steps: Conjugate gradient steps for each weight.

    Raises:
        ValueError: For a number that fits nothing.
    """

    ridge: float = 0.1
    steps: int = 10

    def __post_init__(self) -> None:
        if self.ridge <= 0 or self.steps < 1:
            raise ValueError(f"ridge is {self.ridge} and steps {self.steps}: they must be above 0")


@torch.no_grad()
def fit_kept(
    weight: Tensor, gram: Tensor, cross: Tensor, ridge: float = 0.01, steps: int = 20
) -> Tensor:
    """Minimizes |W X - Y|^2 + r |W - W_0|^2 over the elements of W that are not zero in W_0.

    Every row is a least squares problem of its own, over its own kept columns. They are solved
    together by conjugate gradients, preconditioned by the diagonal, so that no matrix is inverted
    for each row and any mask costs the same: 2 * rows * columns^2 operations a step. Few steps do:
    what they leave out are directions in which the inputs hardly vary.

    Args:
        weight: W_0 [rows, columns], any floating dtype.
        gram: X X^T over all tokens, float32 [columns, columns].
        cross: Y X^T over all tokens, float32 [rows, columns].
        ridge: r over the mean of the diagonal of `gram`; above 0.
        steps: Conjugate gradient steps.

    Returns:
        W, float32 [rows, columns], zero wherever W_0 is.
    """
    keep = weight != 0
    fitted = weight.to(torch.float32, copy=True)
    damping = ridge * float(gram.diagonal().mean())
    if damping == 0:  # no input was ever different from 0: nothing is known
        return fitted
    inverse = (gram.diagonal() + damping).reciprocal()
    residual = apply_mask_(cross - fitted @ gram, keep)
    direction = residual * inverse
    height = (residual * direction).sum(1, keepdim=True)
    for _ in range(steps):
        curved = apply_mask_((direction @ gram).add_(direction, alpha=damping), keep)
        step = _ratio(height, (direction * curved).sum(1, keepdim=True))
        fitted.addcmul_(direction, step)
        residual.addcmul_(curved, step, value=-1)
        scaled = residual * inverse
        lower = (residual * scaled).sum(1, keepdim=True)
        direction.mul_(_ratio(lower, height)).add_(scaled)
        height = lower
    return fitted


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """one / other, and 0 where a row has arrived."""
    return torch.where(other > 0, one / other.clamp(min=torch.finfo(other.dtype).tiny), 0.0)
