# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of sparse_24's wgmma kernel, held to what an H200 measured."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict

import _results
import pytest
from emulated_sparse_24 import VALUES
from plan_drivers import Ask, plan_driver

# Not its numbers in brackets: shapes were counted otherwise when that was measured.
LAUNCH = re.compile(r"\d+ rows x \d+ tokens(?: by a ring)?, \d+ clusters of \dx\d")
KINDS = {  # type of values, columns of a group, bytes of an element of x
    "2:4": ("native", 0, 2),
    "2:4, fp8_e4m3": ("fp8_e4m3", 0, 2),
    "2:4, int4 by 128": ("int4", 128, 2),
    "2:4, fp8_e4m3 x the same": ("fp8_e4m3", 0, 1),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> Ask:
    """The launch that is planned for each product, as text."""
    folder = tmp_path_factory.mktemp("plan")
    return plan_driver(folder, "sparse_24_wgmma", "sparse_24/wgmma_plan.cpp")


@pytest.mark.parametrize("kind", KINDS)
def test_planned_launches_are_nearly_the_fastest(plans, kind):
    """After a change of the plan, measure: benchmarks/gpu/steps.py."""
    values, group, x_bytes = KINDS[kind]
    measured: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "steps.csv")["rows"]:
        if row["zeros"] == kind and (launch := LAUNCH.search(row["launch"])):
            rows, cols = row["shape"].split("x")
            product = (rows, cols, row["tokens"], VALUES.index(values), group, x_bytes)
            measured[product][launch[0]] = row["us"]
    slower = [
        times[plan] / min(times.values())
        for times, plan in zip(measured.values(), plans(measured), strict=True)
        if plan in times
    ]
    assert len(slower) > len(measured) / 5
    assert statistics.geometric_mean(slower) <= 1.02 and max(slower) <= 1.1


def test_planned_launches_of_few_tokens_are_nearly_the_fastest(plans):
    """With weights in a ring or in registers. After a change: benchmarks/sparse_24/sweep.py."""
    measured: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "sparse_24_ring.csv")["rows"]:
        if row["kernel"] == "few":
            continue
        by = " by a ring" if row["kernel"] == "ring" else ""
        launch = f"{row['rows']} rows x {row['tile_tokens']} tokens{by}, {row['clusters']} clusters"
        x_bytes = 1 if row["values"] == "fp8 x fp8" else 2
        rows, cols = row["layer"].split("x")
        product = (rows, cols, row["tokens"], VALUES.index("fp8_e4m3"), 0, x_bytes)
        measured[product][f"{launch} of {row['down']}x{row['depth']}"] = row["us"]
    slower = [
        times[plan] / min(times.values())
        for times, plan in zip(measured.values(), plans(measured), strict=True)
    ]
    assert len(slower) == 40
    assert statistics.geometric_mean(slower) <= 1.01 and max(slower) <= 1.06
