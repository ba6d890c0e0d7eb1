# SPDX-License-Identifier: Apache-2.0
"""From what each layer loses by each choice to the choices of a model of so many bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .knapsack import choose
from .losses import Measured


def choose_by_bits(
    measured: Mapping[str, Sequence[Measured]], shapes: Mapping[str, tuple[int, int]], bits: float
) -> dict[str, Measured]:
    """Chooses what loses least of so many bits a weight, over all layers together.

    Args:
        measured: By layer, its choices.
        shapes: (out_features, in_features) of these layers.
        bits: A weight, at most.

    Returns:
        By layer, its choice.

    Raises:
        ValueError: If even the smallest choices have more bits.
    """
    weights = sum(rows * columns for rows, columns in (shapes[name] for name in measured))
    points = [[(each.nbytes, each.loss) for each in own] for own in measured.values()]
    least = 8 * sum(min(own)[0] for own in points) / weights
    if bits < least:
        raise ValueError(f"{bits:g} is too few: {least:.2f} is the least there is")
    picked = choose(points, int(bits * weights / 8))
    return {name: own[number] for (name, own), number in zip(measured.items(), picked, strict=True)}
