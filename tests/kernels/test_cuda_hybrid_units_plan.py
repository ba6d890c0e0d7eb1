# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of hybrid_units' kernels."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from planned import PLANNED_FOR, launch

from flashsparse_plugin.ops.plan import Product, candidates, choose_kernel, compiled_shapes, plan

NUMBERS = re.compile(r"\d( \d+){4,5}")
KERNEL, MANY = "hybrid_units.few", "hybrid_units.many"
SIZES = {
    "native": (4608, 8192),
    "fp8_e4m3": (2560, 4096),
    "int8": (2560, 4096),
    "int4": (1536, 2048),
}


def product(rows, cols, tokens, values="native", group=None, dense=0.25):
    """Of a weight of which about such a share of units is dense; int4 has scales of 64 columns."""
    group = (64 if values == "int4" else 0) if group is None else group
    units = -(-rows // 16) * -(-cols // 256)
    less, more = (size + (32 * 256 // group if group else 0) for size in SIZES[values])
    of_dense = int(units * dense)
    beside = 4 * (units + 1) + (4 * rows if values != "native" and not group else 0)
    nbytes = (units - of_dense) * less + of_dense * more + beside
    return Product((rows, cols), tokens, nbytes, values, group)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 40_000), cols=st.integers(1, 40_000), tokens=st.integers(1, 200),
    values=st.sampled_from(sorted(SIZES)), group=st.sampled_from((0, 32, 64, 128)),
    dense=st.floats(0, 1), gpu=st.sampled_from(list(PLANNED_FOR)),
)  # fmt: skip
def test_every_product_has_a_plan(rows, cols, tokens, values, group, dense, gpu):
    group = 0 if values == "native" else group
    asked = product(rows, cols, tokens, values, group, dense)
    assert NUMBERS.fullmatch(launch(KERNEL, asked, gpu))
    if gpu == "H200" and has_many(values, group):
        assert NUMBERS.fullmatch(launch(MANY, asked, gpu))


def has_many(values, group):
    return group == 0 or values == "int4"


def test_the_planned_launch_is_the_cheapest_of_those_compared():
    for shape, tokens in (((4096, 4096), 8), ((28672, 8192), 32), ((4096, 14336), 16)):
        for values in SIZES:
            for gpu in PLANNED_FOR.values():
                asked = product(*shape, tokens, values)
                for kernel in (KERNEL, MANY) if gpu.capability == (9, 0) else (KERNEL,):
                    found = candidates(kernel, asked, gpu)
                    first = plan(kernel, asked, gpu)
                    assert first.seconds == min(each.seconds for each in found)
                    assert first.numbers in {each.numbers for each in found}


def test_a_share_of_dense_units_takes_its_time():
    """By the bytes, between sparse_24 and twice the values, and what a warp waits for a unit."""
    gpu = PLANNED_FOR["H200"]
    for values in SIZES:
        times = [
            plan(KERNEL, product(28672, 8192, 8, values, dense=each), gpu).seconds
            for each in (0, 0.25, 0.5, 1)
        ]
        pure = product(28672, 8192, 8, values, dense=0)
        alone = plan("sparse_24.few", pure, gpu).seconds
        assert times == sorted(times) and times[0] > 0.95 * alone
        assert times[0] < 1.45 * alone and times[1] < 1.65 * alone


def test_kernels_by_tokens():
    """By wgmma where a GPU has it, but for 8-bit values with scales of groups."""
    for name, gpu in PLANNED_FOR.items():
        for values, group in (("native", 0), ("int8", 0), ("fp8_e4m3", 128), ("int4", 64)):
            most_few = 32 if values == "native" else 16
            chosen = [
                choose_kernel("hybrid_units", product(4096, 4096, tokens, values, group), gpu)
                for tokens in (1, most_few, most_few + 1, 128, 129, 1024, 1025)
            ]
            if gpu.capability == (9, 0) and has_many(values, group):
                assert chosen == ["few", "few", *["many"] * 4, "library"], (name, values)
            else:
                assert chosen == [*["few"] * 4, *["library"] * 3], (name, values)


def test_a_launch_takes_64_tokens_at_most():
    assert {shape["tokens"] for shape in compiled_shapes(KERNEL)} == {8, 16, 32, 64}
    gpu = PLANNED_FOR["H200"]
    for values, most in (("native", 64), ("int8", 32)):
        one, two = (
            plan(KERNEL, product(8192, 8192, n, values), gpu).seconds for n in (most, most + 1)
        )
        assert two > 1.3 * one


def test_many_tokens_take_the_weight_once():
    """Up to 128 of them; as long as their products take from there on."""
    gpu = PLANNED_FOR["H200"]
    for values in SIZES:
        times = [
            plan(MANY, product(28672, 8192, n, values), gpu).seconds for n in (64, 128, 256, 512)
        ]
        assert times[1] < 1.9 * times[0] and 1.6 * times[1] < times[2] < times[3] / 1.6
