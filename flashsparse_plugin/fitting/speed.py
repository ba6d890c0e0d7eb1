# SPDX-License-Identifier: Apache-2.0
"""What a recipe should cost in time on a GPU, by the planners of what runs there today."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..dataflow.expected import Target, typical_weight
from ..dataflow.model import Weight, best_seconds
from .losses import Measured


def estimated_speed(
    chosen: Mapping[str, Measured], shapes: Mapping[str, tuple[int, int]], target: Target
) -> float:
    """Time of all products dense, over that by the choices; estimated.

    Args:
        chosen: By layer.
        shapes: (out_features, in_features) of these layers.
        target: A GPU, and the tokens of a product.

    Raises:
        FormatError: For a format without a cost model there.
    """
    assert target.gpu is not None
    dense, packed = 0.0, 0.0
    for name, own in chosen.items():
        shape, scheme = shapes[name], own.choice.scheme(torch.bfloat16)
        whole = best_seconds(Weight(shape), target.batch, target.gpu)
        dense += whole
        if scheme is None:
            packed += whole
            continue
        held = scheme.format.runtime(scheme, target.device)
        weight = typical_weight(shape, held, own.density)
        packed += best_seconds(weight, target.batch, target.gpu)
    return dense / packed
