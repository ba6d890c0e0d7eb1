# SPDX-License-Identifier: Apache-2.0
"""Wanda: prune by weight times activation (Sun et al., 2023, arXiv 2306.11695, section 3).

The score of a weight is |W_ij| * ||X_j||_2, with X_j the j-th input feature over all calibration
tokens; scores are compared within a row, that is within an output feature.
"""

from __future__ import annotations

import torch

from .magnitude import magnitude_scores

# A dead input counts as this share of the mean, low enough that its weights are dropped first.
_DEAD_INPUT = 1e-6


def wanda_scores(weight: torch.Tensor, input_norms: torch.Tensor) -> torch.Tensor:
    """Return |W_ij| * ||X_j||_2 as float32, of the weight's shape.

    An input that was zero on every token (norm 0) gets a millionth of the mean norm, so that its
    weights are dropped first, the smallest of them before the others. If all inputs are dead, as in
    an expert that no token reached, the order is that of the magnitudes.

    Args:
        weight: [out_features, in_features], finite.
        input_norms: [in_features], the Euclidean norm of each input over the tokens.

    Raises:
        ValueError: If a norm is NaN, infinite or negative, or the shapes do not match.
    """
    return magnitude_scores(weight) * input_factors(weight, input_norms)


def input_factors(weight: torch.Tensor, input_norms: torch.Tensor) -> torch.Tensor:
    """Return the norms of the inputs up to a common factor, float32 [in_features], 1 or more.

    Raises:
        ValueError: If a norm is NaN, infinite or negative, or the shapes do not match.
    """
    if input_norms.shape != weight.shape[1:]:
        raise ValueError(
            f"{list(input_norms.shape)} input norms for a weight of shape {list(weight.shape)}"
        )
    norms = input_norms.double()
    if not bool((norms.isfinite() & (norms >= 0)).all()):
        raise ValueError("an input norm is NaN, infinite or negative")
    # Only the order matters. With the smallest factor scaled to 1, no score of a weight that is
    # not zero vanishes, so zeros are always dropped first.
    floor = norms.mean() * _DEAD_INPUT
    factors = (norms / floor).clamp(min=1) if floor > 0 else torch.ones_like(norms)
    return factors.float()
