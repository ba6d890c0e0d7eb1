# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of tiled_bitmap's linear kernel, held to what an H200 measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import _results
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import PLANNED_FOR, launch

from flashsparse_plugin.ops import plan

UNIT_ROWS, UNIT_COLS, HEAD_LINES, LINE_BYTES = 16, 256, 5, 128
OPERANDS = {"native": 69, "codes": 37, "rounded": 37}  # in the order of operands.h: lines at most
LARGE = 40_000_000  # elements of a layer
GPUS = ("H200", "H100", "A100", "RTX 4090", "RTX 4060")
Product = tuple[int, int, int, int, str]  # rows, cols, lines of the weight, tokens, operands


def launches(gpu: str, products: Iterable[Product]) -> list[str]:
    """The numbers of the planned launch of each product, as text."""
    found = []
    for rows, cols, lines, tokens, operands in products:
        scales = 0 if operands == "native" else rows
        nbytes = LINE_BYTES * lines + 4 * (units(rows, cols) + 1 + scales)
        values = "native" if operands == "native" else "int8"
        product = plan.Product(
            (rows, cols), tokens, nbytes, values, quantizes_x=operands == "rounded"
        )
        found.append(
            launch("tiled_bitmap.codes", product, gpu)
            if values != "native"
            else launch("tiled_bitmap.few", product, gpu)
        )
    return found


def units(rows: int, cols: int) -> int:
    return -(-rows // UNIT_ROWS) * -(-cols // UNIT_COLS)


def read(name: str) -> list[dict]:
    """Measured products of values, or of codes."""
    return _results.read(_results.FOLDER / name)["rows"]


CODES = read("nvidia-h200/tiled_bitmap_sweep_codes.csv")
JUDGED = {
    ("H200", "native"): read("nvidia-h200/tiled_bitmap_sweep.csv"),
    ("H100", "native"): read("nvidia-h100-80gb-hbm3/tiled_bitmap_sweep.csv"),
    **{
        ("H200", operands): [row for row in CODES if row["values"] == operands]
        for operands in ("codes", "rounded")
    },
}


@pytest.mark.parametrize(("gpu", "operands"), JUDGED)
def test_the_plans_are_those_that_were_judged(gpu, operands):
    """After a change of the plan, measure: benchmarks/gpu/sweep.py."""
    judged = JUDGED[gpu, operands]
    products = [
        (
            row["out"],
            row["in"],
            round(row["lines"] * units(row["out"], row["in"])),
            row["tokens"],
            operands,
        )
        for row in judged
    ]
    assert launches(gpu, products) == [row["planned"] for row in judged]


@pytest.mark.parametrize(("gpu", "operands"), JUDGED)
def test_the_planned_launch_is_the_cheapest_candidate(gpu, operands):
    for row in JUDGED[gpu, operands][::9]:
        nbytes = round(row["lines"] * units(row["out"], row["in"])) * LINE_BYTES
        values = "native" if operands == "native" else "int8"
        product = plan.Product(
            (row["out"], row["in"]),
            row["tokens"],
            nbytes,
            values,
            quantizes_x=operands == "rounded",
        )
        kernel = "tiled_bitmap.few" if values == "native" else "tiled_bitmap.codes"
        chosen = plan.plan(kernel, product, PLANNED_FOR[gpu])
        found = plan.candidates(kernel, product, PLANNED_FOR[gpu])
        assert chosen in found and chosen.seconds == min(each.seconds for each in found)


@pytest.mark.parametrize(
    ("gpu", "operands", "average", "worst", "share"),
    [
        ("H200", "native", 1.012, 1.07, 0.98),
        ("H100", "native", 1.01, 1.07, 0.94),
        ("H200", "codes", 1.02, 1.1, 0.9),
        ("H200", "rounded", 1.025, 1.2, 0.9),
    ],
)
def test_planned_launches_are_nearly_the_fastest(gpu, operands, average, worst, share):
    """`worst`: of large layers; `share`: of launches that were measured."""
    judged = JUDGED[gpu, operands]
    known = [row for row in judged if "us" in row]
    slower = [row["us"] / row["best_us"] for row in known]
    assert len(known) > share * len(judged)
    assert statistics.geometric_mean(slower) <= average
    large = [own for own, row in zip(slower, known, strict=True) if row["out"] * row["in"] > LARGE]
    assert max(large) <= worst


@pytest.mark.parametrize(
    ("gpu", "operands", "within"),
    [
        ("H200", "native", 1.012),
        ("H100", "native", 1.012),
        ("H200", "codes", 1.025),
        ("H200", "rounded", 1.035),
    ],
)
def test_more_zeros_are_not_slower(gpu, operands, within):
    """But for a few percent, and hardly in large layers; codes take nearly the same time of all."""
    times = {
        (r["out"], r["in"], r["tokens"], r["zeros"]): r["us"]
        for r in JUDGED[gpu, operands]
        if "us" in r
    }
    slower = []
    for (out, cols, tokens, zeros), us in times.items():
        more = times.get((out, cols, tokens, zeros + 10), 0)
        large = out * cols > 1.5 * LARGE
        assert more <= us * (1.035 if large else 1.06), (out, cols, tokens, zeros)
        slower += [(out, cols, tokens, zeros)] if large and more > us * within else []
    assert len(slower) <= len(times) / 100, slower  # the same launch differs by 3% at such a point


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_gpu_has_a_plan_for_every_product(data):
    for gpu in GPUS:
        most = 32 if gpu.startswith("RTX") else 64
        rows, cols = data.draw(st.integers(1, 60000)), data.draw(st.integers(1, 60000))
        operands = data.draw(st.sampled_from([*OPERANDS]))
        lines = data.draw(st.integers(HEAD_LINES, OPERANDS[operands])) * units(rows, cols)
        (told,) = launches(gpu, [(rows, cols, lines, data.draw(st.integers(1, most)), operands)])
        numbers = list(map(int, told.split()))
        own = PLANNED_FOR[gpu]
        assert 1 <= numbers[6] <= own.multiprocessors  # a block for each at most
        assert numbers[7] == (own.capability == (9, 0))  # begins early
