# SPDX-License-Identifier: Apache-2.0
"""How the packed kernel of nm_gather is planned, held against what an H200 measured."""

from __future__ import annotations

import csv
import re
import statistics
from typing import NamedTuple

import pytest
from emulation import ROOT
from plan_drivers import plan_driver

MEASURED = ROOT / "benchmarks" / "results" / "nvidia-h200" / "nm_prompts.csv"
CLOCK = 1755  # MHz, of the estimates
LEAST_TOKENS = 256  # for more the packed kernel is chosen
TRANSPOSED = 0.31 / 132  # clocks of a multiprocessor to bring an element of x to its tile
# Measured by tiles of 256 tokens, which the model that was fitted to all points has no more.
BY_OTHER_TILES = {(28672, 7168, 512, n, 32, 64) for n in (12, 16)}


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


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(products) is what packed_plan_driver.cpp tells of each."""
    driver = plan_driver(tmp_path_factory.mktemp("plan"), "packed", "nm_gather/packed_plan.cpp")

    def ask(products: list[Product]) -> list[Plan]:
        return [Plan(*map(int, line.split())) for line in driver(products)]

    return ask


def measured() -> dict[Product, float]:
    """Microseconds of the packed kernel, x_tiles included."""
    lines = [line for line in MEASURED.read_text().splitlines() if not line.startswith("#")]
    found = {}
    for row in csv.DictReader(lines):
        pattern = re.fullmatch(r"(\d+):(\d+), L=(\d+)", row["pattern"])
        if pattern and int(pattern[3]) >= 64 and int(row["tokens"]) > LEAST_TOKENS:
            shape = map(int, row["shape"].split("x"))
            product = Product(*shape, int(row["tokens"]), *map(int, pattern.groups()))
            found[product] = float(row["us"])
    return found


def test_estimates_are_what_was_measured(plan):
    """To a factor that is the same for all, and near 1."""
    times = {product: us for product, us in measured().items() if product not in BY_OTHER_TILES}
    assert len(times) == 158
    clocks = [
        told.clocks + TRANSPOSED * product.tokens * product.cols
        for product, told in zip(times, plan(list(times)), strict=True)
    ]
    megahertz = [clock / us for clock, us in zip(clocks, times.values(), strict=True)]
    middle = statistics.median(megahertz)
    errors = [each / middle - 1 for each in megahertz]
    assert abs(middle / CLOCK - 1) < 0.05
    assert max(map(abs, errors)) < 0.15 and statistics.pstdev(errors) < 0.05


def test_tiles_are_as_large_as_what_they_save(plan):
    """Pairs of a large tile take little longer, so rounds decide."""
    half, whole = plan([Product(4096, 4096, tokens, 8, 32, 64) for tokens in (512, 1024)])
    assert (half.tile_tokens, whole.tile_tokens) == (256, 512)  # one round either way
    for n in (4, 8, 12, 16):  # 4 rounds, where tiles of 256 tokens would be 7
        (found,) = plan([Product(28672, 7168, 512, n, 32, 64)])
        assert found.tile_tokens == 512
