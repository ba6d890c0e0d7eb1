# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of sparse_24's wgmma kernel, held to what an H200 measured."""

from __future__ import annotations

import statistics
from collections import defaultdict

import _results
import pytest

from flashsparse_plugin.gpu import GPUS
from flashsparse_plugin.ops.plan import Product, launch_fields, plan

KERNEL = "sparse_24.many"
KINDS = {  # type of values, columns of a group, whether x is quantized
    "2:4": ("native", 0, False),
    "2:4 fp8_e4m3": ("fp8_e4m3", 0, False),
    "2:4 int8": ("int8", 0, False),
    "2:4 int4 by 128": ("int4", 128, False),
    "2:4 int8 W8A8": ("int8", 0, True),
    "2:4 fp8 W8A8": ("fp8_e4m3", 0, True),
}


def planned(kind: str, shape: str, tokens: int) -> str:
    """The launch that is planned for a product, as text."""
    values, group, quantizes_x = KINDS[kind]
    rows, cols = map(int, shape.split("x"))
    product = Product((rows, cols), tokens, 0, values, group, quantizes_x=quantizes_x)
    numbers = plan(KERNEL, product, GPUS[0]).numbers
    return " ".join(f"{name}={n}" for name, n in zip(launch_fields(KERNEL), numbers, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_planned_launches_are_nearly_the_fastest(kind):
    """After a change of the plan: benchmarks/gpu/sweep.py --kernels sparse_24.many."""
    measured: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for row in _results.read(_results.FOLDER / "nvidia-h200" / "sparse_24_many_sweep.csv")["rows"]:
        if row["values"] == kind and row["tokens"] > 16:  # mma has fewer
            measured[row["shape"], row["tokens"]][row["launch"]] = row["us"]
    assert len(measured) >= 40
    chosen = {point: planned(kind, *point) for point in measured}
    slower = {
        point: times[chosen[point]] / min(times.values())
        for point, times in measured.items()
        if chosen[point] in times
    }
    assert len(slower) >= 0.9 * len(measured)
    assert statistics.geometric_mean(slower.values()) <= 1.015 and max(slower.values()) <= 1.13
    if KINDS[kind][0] in ("fp8_e4m3", "int8"):
        few = [share for (_, tokens), share in slower.items() if tokens <= 64]
        assert len(few) == 12
        assert statistics.geometric_mean(few) <= 1.01 and max(few) <= 1.06
