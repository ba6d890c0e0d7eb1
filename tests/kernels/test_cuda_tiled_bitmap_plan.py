# SPDX-License-Identifier: Apache-2.0
"""How the host cuts the work of tiled_bitmap's linear kernel, held to what an H200 measured."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import _results
import pytest
from emulation import KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st

UNIT_ROWS, UNIT_COLS, HEAD_LINES, MOST_LINES = 16, 256, 5, 69
LARGE = 40_000_000  # elements of a layer
# Multiprocessors, bytes of shared memory of a block, whether it is a Hopper.
GPUS = {
    "H200": (132, 227 << 10, 1),
    "A100": (108, 163 << 10, 0),
    "RTX 4090": (128, 99 << 10, 0),
    "RTX 4060": (24, 99 << 10, 0),
}
Product = tuple[int, int, int, int]  # rows, cols, lines of the weight, tokens
Plans = Callable[[str, Iterable[Product]], list[str]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> Plans:
    """The numbers of the plan of each product, as text, or the rule that it breaks."""
    program = tmp_path_factory.mktemp("plan") / "plan"
    sources = [
        Path(__file__).with_name("tiled_bitmap_plan_driver.cpp"),
        KERNELS / "cuda" / "tiled_bitmap" / "linear_plan.cpp",
    ]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]
    command += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*command, *map(str, sources), "-o", str(program)], check=True)

    def ask(gpu: str, products: Iterable[Product]) -> list[str]:
        asked = "".join(" ".join(map(str, (*each, *GPUS[gpu]))) + "\n" for each in products)
        ran = subprocess.run([program], input=asked, text=True, check=True, capture_output=True)
        return ran.stdout.splitlines()

    return ask


def units(rows: int, cols: int) -> int:
    return -(-rows // UNIT_ROWS) * -(-cols // UNIT_COLS)


@pytest.fixture(scope="module")
def measured() -> list[dict]:
    return _results.read(_results.FOLDER / "nvidia-h200" / "tiled_bitmap_sweep.csv")["rows"]


def test_the_plans_are_those_that_were_judged(plans, measured):
    """After a change of the plan, measure: benchmarks/tiled_bitmap/sweep.py."""
    products = [
        (row["out"], row["in"], round(row["lines"] * units(row["out"], row["in"])), row["tokens"])
        for row in measured
    ]
    assert plans("H200", products) == [row["planned"] for row in measured]


def test_planned_launches_are_nearly_the_fastest(measured):
    known = [row for row in measured if "us" in row]
    slower = [row["us"] / row["best_us"] for row in known]
    assert len(known) > 0.9 * len(measured)
    assert statistics.geometric_mean(slower) <= 1.02
    large = [own for own, row in zip(slower, known, strict=True) if row["out"] * row["in"] > LARGE]
    assert max(large) <= 1.1


def test_more_zeros_are_not_slower(measured):
    """But for a few percent, and not in large layers."""
    times = {(r["out"], r["in"], r["tokens"], r["zeros"]): r["us"] for r in measured if "us" in r}
    for (out, cols, tokens, zeros), us in times.items():
        more = times.get((out, cols, tokens, zeros + 10), 0)
        assert more <= us * (1.01 if out * cols > 1.5 * LARGE else 1.06), (out, cols, tokens, zeros)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_gpu_has_a_plan_for_every_product(plans, data):
    for gpu in GPUS:
        most = 64 if GPUS[gpu][1] > 128 << 10 else 32
        rows, cols = data.draw(st.integers(1, 60000)), data.draw(st.integers(1, 60000))
        lines = data.draw(st.integers(HEAD_LINES, MOST_LINES)) * units(rows, cols)
        (told,) = plans(gpu, [(rows, cols, lines, data.draw(st.integers(1, most)))])
        numbers = list(map(int, told.split()))
        assert 1 <= numbers[6] <= GPUS[gpu][0]  # a block for each multiprocessor at most
        assert numbers[7] == GPUS[gpu][2]
