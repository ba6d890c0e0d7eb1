# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of nm_gather's kernel for few tokens, held to what was measured."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

import _results
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import launch

from flashsparse_plugin.ops import plan

TYPES = ("native", "fp8_e4m3", "int8", "int4")
GPUS = ("H200", "A100", "RTX 4060")
NUMBERS = re.compile(r"\d+( \d+){4}")
Product = tuple[int, int, int, int, int, int, str, int]
"""Rows, columns, tokens, n, m, vector length, values, columns of a group."""


def launches(gpu: str, products: Iterable[Product]) -> list[str]:
    """The numbers of the planned launch of each product, as text."""
    return [
        launch(
            "nm_gather.few",
            plan.Product((rows, cols), tokens, 0, values, group, (n, m, length)),
            gpu,
        )
        for rows, cols, tokens, n, m, length, values, group in products
    ]


def measured(name: str) -> dict[Product, dict[str, float]]:
    """Microseconds of launches, by products."""
    found: dict[Product, dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / f"{name}.csv")["rows"]:
        if row["launch"] != "its own choice":
            size = row["rows"], row["cols"], row["tokens"], row["kept"]
            found[*size, 32, 32, "native", 0][row["launch"]] = row["us"]
    return found


def test_plans_are_near_the_fastest_launches():
    """After a change of the plan, measure: benchmarks/gpu/sweep.py."""
    times = measured("nm_gather_sweep")
    slower = [
        times[product][numbers] / min(times[product].values())
        for product, numbers in zip(times, launches("H200", times), strict=True)
        if numbers in times[product]
    ]
    assert len(slower) >= 0.8 * len(times)
    assert statistics.geometric_mean(slower) < 1.03
    assert max(slower) < 1.2


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40_000), cols=st.integers(1, 40_000), tokens=st.integers(1, 16),
    n=st.sampled_from((4, 8, 12, 16)), length=st.sampled_from((8, 16, 32, 128)),
    values=st.sampled_from(TYPES), gpu=st.sampled_from(GPUS),
)  # fmt: skip
def test_every_product_has_a_plan(rows, cols, tokens, n, length, values, gpu):
    group, m = (128, 32) if values == "int4" else (0, 32)
    product = (rows, cols, tokens, n, m, length, values, group)
    if length * (16 if values == "native" else 4 if values == "int4" else 8) < 128:
        with pytest.raises(RuntimeError, match="nm_gather cannot hold"):
            launches(gpu, [product])
    else:
        (numbers,) = launches(gpu, [product])
        assert NUMBERS.fullmatch(numbers)
