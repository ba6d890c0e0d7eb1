# SPDX-License-Identifier: Apache-2.0
"""One choice for each layer, of the least loss that so many bytes allow."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Point = tuple[int, float]
"""Bytes, and what is lost."""


def choose(layers: Sequence[Sequence[Point]], budget: int) -> list[int]:
    """Chooses by Lagrangian relaxation: the same loss for a byte is the limit in all layers.

    Only points on the lower convex hull of a layer are the best for some price of a byte. From the
    smallest ones on, the step that saves most loss for its bytes is taken first, until the next one
    does not fit; of what is left, smaller steps are taken. The sum is within one step of the best.

    Source: Shoham and Gersho, "Efficient bit allocation for an arbitrary set of quantizers", IEEE
    Trans. ASSP 36 (9), 1988.

    Args:
        layers: By layer, what may become of it.
        budget: Bytes of all layers together.

    Returns:
        By layer, the number of the point that was chosen.

    Raises:
        ValueError: Where even the smallest points are too large.
    """
    hulls = [hull(points) for points in layers]
    at = [0] * len(layers)
    left = budget - sum(points[own[0]][0] for points, own in zip(layers, hulls, strict=True))
    if left < 0:
        raise ValueError(f"{-left} bytes more are needed than the budget of {budget}")
    steps: list[tuple[float, int, int]] = []

    def offer(layer: int) -> None:
        if at[layer] + 1 < len(hulls[layer]):
            here, there = (layers[layer][hulls[layer][at[layer] + more]] for more in (0, 1))
            cost = there[0] - here[0]
            heapq.heappush(steps, ((there[1] - here[1]) / cost, layer, cost))

    for layer in range(len(layers)):
        offer(layer)
    while steps:
        _, layer, cost = heapq.heappop(steps)
        if cost <= left:
            left -= cost
            at[layer] += 1
            offer(layer)
    return [own[place] for own, place in zip(hulls, at, strict=True)]


def hull(points: Sequence[Point]) -> list[int]:
    """Numbers of the points on the lower convex hull, from the fewest bytes to the least loss."""
    order = sorted(range(len(points)), key=lambda number: points[number])
    found: list[int] = []
    for number in order:
        size, loss = points[number]
        if found and loss >= points[found[-1]][1]:
            continue  # more bytes, or as many, for nothing
        while len(found) > 1 and _is_above(points[found[-2]], points[found[-1]], (size, loss)):
            found.pop()
        found.append(number)
    return found


def _is_above(first: Point, middle: Point, last: Point) -> bool:
    """Whether a point is on or above the line between its neighbours."""
    by_middle = (middle[1] - first[1]) * (last[0] - first[0])
    by_last = (last[1] - first[1]) * (middle[0] - first[0])
    return by_middle >= by_last
