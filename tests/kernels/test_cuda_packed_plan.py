# SPDX-License-Identifier: Apache-2.0
"""How the packed kernel of nm_gather is planned, held against what an H200 measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import _results
import pytest

from flashsparse_plugin.gpu import find_gpu
from flashsparse_plugin.ops.plan import Product as Weights
from flashsparse_plugin.ops.plan import choose_kernel, compiled_shapes, plan

H200 = find_gpu("H200", (9, 0))
SHAPES = ((128, 128), (128, 256), (64, 256), (64, 512))  # rows and tokens of the tiles, by index
M = 32  # of all patterns that were measured


class Product(NamedTuple):
    rows: int
    cols: int
    tokens: int
    n: int
    m: int
    vector_length: int


class Plan(NamedTuple):
    tile_rows: int
    tile_tokens: int
    band: int
    microseconds: float


Launch = tuple[int, int, int]
"""Rows and tokens of a tile, and the band."""


def weights(product: Product, nbytes: int = 0) -> Weights:
    rows, cols, tokens, n, m, length = product
    return Weights((rows, cols), tokens, nbytes, pattern=(n, m, length))


def planned(products: Iterable[Product]) -> list[Plan]:
    shapes, found = compiled_shapes("nm_gather.packed"), []
    for product in products:
        (index, band), seconds = plan("nm_gather.packed", weights(product), H200)
        own = shapes[index]
        found.append(Plan(own["rows"], own["tile_tokens"], band, seconds * 1e6))
    return found


@pytest.fixture(scope="module")
def sweep() -> dict[Product, dict[Launch, float]]:
    """Microseconds of launches, x_tiles included, by products."""
    found: dict[Product, dict[Launch, float]] = defaultdict(dict)
    path = _results.FOLDER / "nvidia-h200" / "nm_packed_sweep.csv"
    for row in _results.read(path)["rows"]:
        product = Product(row["rows"], row["cols"], row["tokens"], row["kept"], M, row["length"])
        found[product][*SHAPES[row["shape"]], row["band"]] = row["us"]
    return found


def launch_of(plan: Plan, product: Product) -> Launch:
    across = -(-product.tokens // plan.tile_tokens)
    return plan.tile_rows, plan.tile_tokens, min(plan.band, across)


def test_estimates_are_what_was_measured(sweep):
    """But for one factor: nm_prompts.csv, to which estimates are fitted, has longer times."""
    ratios = []
    for product, own in zip(sweep, planned(sweep), strict=True):
        activations = 2 * product.tokens * (product.rows + product.cols) / H200.memory * 1e6
        ratios.append((own.microseconds + activations) / sweep[product][launch_of(own, product)])
    middle = statistics.median(ratios)
    assert 1.1 < middle < 1.18
    assert max(abs(each / middle - 1) for each in ratios) < 0.2
    assert statistics.pstdev(ratios) / middle < 0.065


def test_plans_are_near_the_fastest_launches(sweep):
    """After a change of the plan, measure: benchmarks/gpu/sweep.py."""
    slower = [
        sweep[product][launch_of(told, product)] / min(sweep[product].values())
        for product, told in zip(sweep, planned(sweep), strict=True)
    ]
    assert statistics.fmean(slower) < 1.01 and max(slower) < 1.11


def test_tiles_are_as_large_as_there_are_products_for():
    """Large ones read less for each product; small ones keep more multiprocessors busy."""
    few, many = planned([Product(4096, 4096, tokens, 8, 32, 128) for tokens in (512, 1024)])
    assert (few.tile_tokens, many.tile_tokens) == (128, 256)
    few, many = planned([Product(4096, 4096, tokens, 8, 32, 64) for tokens in (512, 2048)])
    assert (few.tile_tokens, many.tile_tokens) == (256, 512)


@pytest.mark.parametrize(
    ("rows", "tokens", "vector_length", "pays"),
    [
        (28672, 64, 128, False),
        (28672, 65, 128, True),
        (8320, 128, 128, False),  # 65 tiles, which leave half of the multiprocessors idle
        (8321, 128, 128, True),
        (4096, 256, 128, False),
        (4097, 256, 128, True),
        (28672, 256, 64, False),
        (1, 257, 64, True),
    ],
)
def test_it_is_chosen_where_it_was_faster(rows, tokens, vector_length, pays):
    product = weights(Product(rows, 4096, tokens, 8, M, vector_length))
    assert choose_kernel("nm_gather", product, H200) == ("packed" if pays else "many")
