# SPDX-License-Identifier: Apache-2.0
"""RIA: relative importance and activations (Zhang et al., ICLR 2024, "Plug-and-Play", section 3).

The importance of a weight is relative to its row and to its column, so that no input and no output
feature loses all of its weights, and is multiplied by the root of the norm of its input.
"""

from __future__ import annotations

import torch

from .magnitude import magnitude_scores
from .wanda import input_factors

_POWER = 0.5  # of the norm of an input: `a` of the paper, which found 0.5 to be best


def ria_scores(weight: torch.Tensor, input_norms: torch.Tensor) -> torch.Tensor:
    """Return (|W_ij| / sum |W_*j| + |W_ij| / sum |W_i*|) * ||X_j||_2 ** 0.5.

    Args:
        weight: [out_features, in_features], finite.
        input_norms: [in_features], the Euclidean norm of each input over the tokens.

    Returns:
        float32, of the weight's shape; only the order within it means something.

    Raises:
        ValueError: If a norm is NaN, infinite or negative, or the shapes do not match.
    """
    magnitudes = magnitude_scores(weight)
    relative = sum(
        magnitudes / magnitudes.sum(dim, keepdim=True, dtype=torch.float64).clamp(min=1e-300)
        for dim in (0, 1)
    )
    return (relative * input_factors(weight, input_norms).double() ** _POWER).float()
