# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of exact_units' kernel."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from planned import PLANNED_FOR, launch

from flashsparse_plugin.ops.plan import Product, candidates, plan

NUMBERS = re.compile(r"\d( \d+){5}")
KERNEL = "exact_units.few"


@settings(max_examples=40)
@given(
    rows=st.integers(1, 40_000), cols=st.integers(1, 40_000), tokens=st.integers(1, 200),
    slots=st.sampled_from((4, 8, 16)), gpu=st.sampled_from(list(PLANNED_FOR)),
)  # fmt: skip
def test_every_product_has_a_plan(rows, cols, tokens, slots, gpu):
    units = -(-rows // 16) * -(-cols // 256)
    product = Product((rows, cols), tokens, units * (6144 + 4 * slots))
    assert NUMBERS.fullmatch(launch(KERNEL, product, gpu))


def test_the_planned_launch_is_the_cheapest_of_those_compared():
    for shape, tokens in (((4096, 4096), 8), ((28672, 8192), 32), ((4096, 14336), 64)):
        product = Product(shape, tokens, shape[0] * shape[1] * 3 // 2)
        for gpu in PLANNED_FOR.values():
            found = candidates(KERNEL, product, gpu)
            best = min(each.seconds for each in found)
            first = plan(KERNEL, product, gpu)
            if tokens <= 32 or gpu.capability == (9, 0):  # of one launch
                assert first.seconds == best and first.numbers in {e.numbers for e in found}


def test_small_layers_are_not_cut_along_rows():
    """Sums between blocks would take as long as the weight."""
    numbers = plan(KERNEL, Product((4096, 4096), 8, 0), PLANNED_FOR["H200"]).numbers
    _, row_warps, column_warps, *_, blocks = numbers
    assert 4096 / 16 / row_warps % blocks == 0 and column_warps > 1
