# SPDX-License-Identifier: Apache-2.0
"""How the packed kernel of nm_gather is planned, held against what an H200 measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple

import _results
import pytest
import torch
from plan_drivers import plan_driver

from flashsparse_plugin.dataflow import Weight, model
from flashsparse_plugin.formats import find_form
from flashsparse_plugin.formats.nm_gather import cost
from flashsparse_plugin.gpu import find_gpu
from flashsparse_plugin.plan import SPARSE

H200 = find_gpu("H200", (9, 0))
CLOCK = 1755  # MHz, of the estimates
TRANSPOSED = 0.31 / 132  # clocks of a multiprocessor to bring an element of x to its tile
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
    clocks: int
    pays: int


Launch = tuple[int, int, int]
"""Rows and tokens of a tile, and the band."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(products) is what packed_plan_driver.cpp tells of each."""
    driver = plan_driver(tmp_path_factory.mktemp("plan"), "packed", "nm_gather/packed_plan.cpp")

    def ask(products: list[Product]) -> list[Plan]:
        return [Plan(*map(int, line.split())) for line in driver(products)]

    return ask


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


def test_estimates_are_what_was_measured(plan, sweep):
    errors = []
    for product, told in zip(sweep, plan(list(sweep)), strict=True):
        clocks = told.clocks + TRANSPOSED * product.tokens * product.cols
        errors.append(clocks / CLOCK / sweep[product][launch_of(told, product)] - 1)
    assert abs(statistics.median(errors)) < 0.03
    assert max(map(abs, errors)) < 0.2 and statistics.pstdev(errors) < 0.065


def test_plans_are_near_the_fastest_launches(plan, sweep):
    """After a change of the plan, measure: benchmarks/nm_gather/packed_sweep.py."""
    slower = [
        sweep[product][launch_of(told, product)] / min(sweep[product].values())
        for product, told in zip(sweep, plan(list(sweep)), strict=True)
    ]
    assert statistics.fmean(slower) < 1.01 and max(slower) < 1.11


def test_tiles_are_as_large_as_there_are_products_for(plan):
    """Large ones read less for each product; small ones keep more multiprocessors busy."""
    few, many = plan([Product(4096, 4096, tokens, 8, 32, 128) for tokens in (512, 1024)])
    assert (few.tile_tokens, many.tile_tokens) == (128, 256)
    few, many = plan([Product(4096, 4096, tokens, 8, 32, 64) for tokens in (512, 2048)])
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
def test_it_is_chosen_where_it_was_faster(plan, rows, tokens, vector_length, pays):
    (told,) = plan([Product(rows, 4096, tokens, 8, M, vector_length)])
    assert bool(told.pays) == pays == cost.packs(rows, vector_length, 16, tokens, H200)


def test_the_cost_model_knows_it(sweep):
    """Of layers, by whose estimates `auto` chooses formats and plans choose implementations."""
    form, errors = find_form("nm_gather"), []
    for product, launches in sweep.items():
        rows, cols, tokens, n, m, length = product
        if cost.packs(rows, length, 16, tokens, H200):
            scheme = form.scheme(torch.bfloat16, {"n": n, "m": m, "vector_length": length})
            weight = Weight((rows, cols), scheme, n / m, form.nbytes(scheme, (rows, cols)))
            seconds = model.seconds(SPARSE, weight, tokens, H200)
            errors.append(seconds * 1e6 / min(launches.values()) - 1)
    assert len(errors) == 212
    assert statistics.pstdev(errors) < 0.06 and abs(statistics.fmean(errors)) < 0.02
