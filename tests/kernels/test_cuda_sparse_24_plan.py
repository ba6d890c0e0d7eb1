# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of sparse_24's kernel for few tokens, held to what was measured."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

import _results
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import PLANNED_FOR, launch

from flashsparse_plugin.ops.plan import Product as Product24

TYPES = ("native", "fp8_e4m3", "int8", "int4")
NUMBERS = re.compile(r"\d( \d+){5}")
Product = tuple[int, int, int, str, int, int]  # rows, cols, tokens, values, group, bytes of x


def launches(gpu: str, products: Iterable[Product]) -> list[str]:
    """The numbers of the planned launch of each product, as text."""
    return [
        launch(
            "sparse_24.few",
            Product24((rows, cols), tokens, 0, values, group, quantizes_x=x_bytes == 1),
            gpu,
        )
        for rows, cols, tokens, values, group, x_bytes in products
    ]


def measured() -> dict[Product, dict[str, float]]:
    """Microseconds of launches after another kernel, by products."""
    found: dict[Product, dict[str, float]] = defaultdict(dict)
    rows = _results.read(_results.FOLDER / "nvidia-h200" / "sweep_24_few.csv")["rows"]
    for row in rows:
        values, _, group = row["values"].partition(" by ")
        product = (row["rows"], row["cols"], row["tokens"], values, int(group or 0), 2)
        found[product][row["launch"]] = row["us"]
    return found


def test_plans_are_near_the_fastest_launches():
    """After a change of the plan, measure: benchmarks/gpu/sweep.py."""
    times = measured()
    slower: dict[str, list[float]] = defaultdict(list)
    for product, plan in zip(times, launches("H200", times), strict=True):
        if plan in times[product]:
            slower[product[3]].append(times[product][plan] / min(times[product].values()))
    for values, least, most in (
        ("native", 60, 1.02), ("fp8_e4m3", 50, 1.04), ("int8", 20, 1.05), ("int4", 50, 1.05),
    ):  # fmt: skip
        assert len(slower[values]) >= least, values
        assert statistics.geometric_mean(slower[values]) < most, values
        assert max(slower[values]) < 1.3, values


def test_small_layers_have_whole_sets_of_rows():
    """Sums between blocks would take as long as the weight."""
    (plan,) = launches("H200", [(4096, 4096, 8, "int8", 0, 2)])
    _, row_warps, column_warps, *_, blocks = map(int, plan.split())
    row_units = 2 if plan[0] == "1" else 1
    assert 4096 / 16 / (row_warps * row_units) % blocks == 0 and column_warps > 1


@settings(max_examples=60)
@given(
    rows=st.integers(1, 40_000), cols=st.integers(1, 40_000), tokens=st.integers(1, 32),
    values=st.sampled_from(TYPES), gpu=st.sampled_from(list(PLANNED_FOR)), narrow=st.booleans(),
)  # fmt: skip
def test_every_product_has_a_plan(rows, cols, tokens, values, gpu, narrow):
    group = 128 if values == "int4" else 0
    x_bytes = 1 if narrow and values == "int8" else 2
    (plan,) = launches(gpu, [(rows, cols, tokens, values, group, x_bytes)])
    assert NUMBERS.fullmatch(plan), plan
