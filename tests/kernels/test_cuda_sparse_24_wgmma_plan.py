# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of sparse_24's wgmma kernel, held to what an H200 measured."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

import _results
import pytest

from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.plan import Product as Weights
from flashsparse_plugin.ops.plan import compiled_shapes, plan

# Not its numbers in brackets: shapes were counted otherwise when that was measured.
LAUNCH = re.compile(r"\d+ rows x \d+ tokens(?: by a ring)?, \d+ clusters of \dx\d")
KINDS = {  # type of values, columns of a group, bytes of an element of x
    "2:4": ("native", 0, 2),
    "2:4, fp8_e4m3": ("fp8_e4m3", 0, 2),
    "2:4, int4 by 128": ("int4", 128, 2),
    "2:4, fp8_e4m3 x the same": ("fp8_e4m3", 0, 1),
}

Product = tuple[tuple[int, int], int, str, int, int]
"""Shape, tokens, values, columns of a group, bytes of an element of x."""


def launches(products: Iterable[Product]) -> list[str]:
    """The launch that is planned for each product, as text."""
    shapes, found = compiled_shapes("sparse_24.many"), []
    for shape, tokens, values, group, x_bytes in products:
        product = Weights(shape, tokens, 0, values, group, quantizes_x=x_bytes == 1)
        index, down, depth, _, clusters = plan("sparse_24.many", product, GPUS[0]).numbers
        own = shapes[index]
        text = f"{64 * own['groups']} rows x {own['tokens']} tokens"
        text += " by a ring" if own["has_ring"] else ""
        found.append(f"{text}, {clusters} clusters of {down}x{depth}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_planned_launches_are_nearly_the_fastest(kind):
    """After a change of the plan, measure: benchmarks/gpu/steps.py."""
    values, group, x_bytes = KINDS[kind]
    measured: dict[Product, dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "steps.csv")["rows"]:
        if row["zeros"] == kind and (launch := LAUNCH.search(row["launch"])):
            rows, cols = row["shape"].split("x")
            product = ((int(rows), int(cols)), row["tokens"], values, group, x_bytes)
            measured[product][launch[0]] = row["us"]
    slower = [
        times[own] / min(times.values())
        for times, own in zip(measured.values(), launches(measured), strict=True)
        if own in times
    ]
    assert len(slower) > len(measured) / 5
    assert statistics.geometric_mean(slower) <= 1.02 and max(slower) <= 1.1


def test_planned_launches_of_few_tokens_are_nearly_the_fastest():
    """With weights in a ring or in registers. After a change: benchmarks/gpu/sweep.py."""
    measured: dict[Product, dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "sparse_24_ring.csv")["rows"]:
        if row["kernel"] == "few":
            continue
        by = " by a ring" if row["kernel"] == "ring" else ""
        launch = f"{row['rows']} rows x {row['tile_tokens']} tokens{by}, {row['clusters']} clusters"
        x_bytes = 1 if row["values"] == "fp8 x fp8" else 2
        rows, cols = row["layer"].split("x")
        product = ((int(rows), int(cols)), row["tokens"], "fp8_e4m3", 0, x_bytes)
        measured[product][f"{launch} of {row['down']}x{row['depth']}"] = row["us"]
    slower = [
        times[own] / min(times.values())
        for times, own in zip(measured.values(), launches(measured), strict=True)
    ]
    assert len(slower) == 40
    assert statistics.geometric_mean(slower) <= 1.01 and max(slower) <= 1.06
