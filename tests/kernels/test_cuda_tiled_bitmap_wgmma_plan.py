# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of tiled_bitmap's wgmma kernel, held to what an H200 measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable

import _results
import pytest

from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.plan import Product as Weights
from flashsparse_plugin.ops.plan import plan

Product = tuple[int, int, int, int]  # rows, cols, lines of the weight, tokens
Plans = Callable[[Iterable[Product]], list[tuple[float, str]]]
LARGE = 40_000_000  # elements of a layer


@pytest.fixture(scope="module")
def plans() -> Plans:
    """Microseconds that the planned launch of each product should take, and its numbers."""

    def ask(products: Iterable[Product]) -> list[tuple[float, str]]:
        found = []
        for rows, cols, lines, tokens in products:
            nbytes = 128 * lines + 4 * (-(-rows // 16) * -(-cols // 256) + 1)
            own = plan("tiled_bitmap.many", Weights((rows, cols), tokens, nbytes), GPUS[0])
            found.append((own.seconds * 1e6, f"[{', '.join(map(str, own.numbers))}]"))
        return found

    return ask


@pytest.fixture(scope="module")
def measured() -> dict[Product, dict[str, float]]:
    """Microseconds of the launches of each product, by the numbers of their plans."""
    found: dict[Product, dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "steps.csv")["rows"]:
        if row["format"] == "tiled_bitmap" and "[" in row["launch"]:
            rows, cols = map(int, row["shape"].split("x"))
            lines = (row["bytes"] - 4 * (-(-rows // 16) * -(-cols // 256) + 1)) // 128
            plan = row["launch"][row["launch"].index("[") :]
            found[rows, cols, lines, row["tokens"]][plan] = row["us"]
    return found


def test_planned_launches_are_nearly_the_fastest(plans, measured):
    """After a change of the plan, measure: benchmarks/gpu/steps.py."""
    slower, estimates = [], []
    for times, (cost, numbers) in zip(measured.values(), plans(measured), strict=True):
        if numbers in times:
            slower.append(times[numbers] / min(times.values()))
            estimates.append(cost / times[numbers])
    assert len(slower) > 0.98 * len(measured)
    assert statistics.geometric_mean(slower) <= 1.006 and max(slower) <= 1.07
    assert max(max(ratio, 1 / ratio) for ratio in estimates) <= 1.2


def test_steps_behind_64_and_128_tokens_are_small(plans, measured):
    """By the plan's costs; with tiles of 64, 128, 192 and 256 tokens they were 20% to 32%."""
    layers = {each[:3] for each in measured if each[0] * each[1] > LARGE}
    products = [(*layer, tokens) for layer in layers for tokens in (64, 65, 128, 129)]
    costs = [cost for cost, _ in plans(products)]
    assert len(layers) >= 5
    for before, behind in zip(costs[::2], costs[1::2], strict=True):
        assert behind <= 1.13 * before
