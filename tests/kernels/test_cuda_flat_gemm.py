# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of dense layers, their own source, run on the CPU by the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import emulated_dense
import pytest
import torch
from emulated_dense import Case, answers, run
from emulated_linear import require_exact
from emulation import (
    KERNELS,
    SANITIZED,
    SEEDS,
    UNTIL_A_RACE,
    compile_driver,
    is_caught,
    with_switched_barriers,
)

PLAN = "cuda/dense/dense_plan.h"
PARTS = ("dense/flat_gemm.cuh", "dense/gemv.cuh", "dense/dense.cuh", "shared/partial_sums.cuh")
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Shape:
    """One that a kernel is compiled in, and what it can do."""

    gemv: bool
    index: int
    tokens: int
    rows: int
    warps_k: int
    stages: int
    aligned: bool


def compiled_shapes(text: str) -> list[Shape]:
    found = []
    for gemv, name in enumerate(("FLAT", "GEMV")):
        listed = re.search(rf"#define FS_{name}_SHAPES\(X\)((?: *\\\n +X\(.*?\))+)", text)[1]
        lines = re.findall(r"X\((.*?)\)", listed)
        lines.append(re.search(rf"#define FS_UNALIGNED_{name}_SHAPE (.*)", text)[1])
        for index, line in enumerate(lines):
            tokens, rows, warps_n, warps_k, stages, _ = map(int, line.split(","))
            rows *= warps_n * (1 if gemv else 16)
            aligned = index < len(lines) - 1
            found.append(Shape(bool(gemv), index, tokens, rows, warps_k, stages, aligned))
    return found


SHAPES = compiled_shapes((KERNELS / PLAN).read_text())
FLAT = [shape for shape in SHAPES if not shape.gemv]
GEMV = [shape for shape in SHAPES if shape.gemv]


def assert_exact(binary: Path, cases: list[Case]) -> None:
    """Every case is right, and has the same bits on every schedule."""
    expected = answers(binary, [replace(case, seed=SEEDS[0]) for case in cases])
    for case, y in zip(cases, expected, strict=True):
        require_exact(case, y)
    for seed in SEEDS[1:]:
        again = answers(binary, [replace(case, seed=seed) for case in cases])
        for case, y, same in zip(cases, again, expected, strict=True):
            assert torch.equal(y.view(torch.int16), same.view(torch.int16)), f"{case}, not {seed}"


def random_case(
    rows: int, cols: int, tokens: int, number: int, offset: int = 0, gap: int = 0, **rest
) -> Case:
    """Normal values; both dtypes and bias by turns. Beyond the columns lie NaN."""
    generator = torch.Generator().manual_seed(number)
    dtype = DTYPES[number % 2]

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    around = torch.full((offset + rows * (cols + gap),), torch.nan, dtype=dtype)
    weight = around[offset:].view(rows, cols + gap)[:, :cols]
    weight.copy_(normal(rows, cols))
    bias = normal(rows) if number % 3 else None
    return Case(weight, normal(tokens, cols), bias, **rest)


def compiled_cases(shapes: list[Shape]) -> list[Case]:
    """Every compiled shape: long enough for its pipeline's loop and end, and cut where it can."""
    cases = []
    for number, shape in enumerate(shapes):
        step = 256 if shape.gemv else 64
        steps = shape.warps_k * (2 * shape.stages + 1) + 1
        ragged = 0 if shape.aligned else 5
        for tokens, rows, split in ((shape.tokens, shape.rows + 3, 1), (shape.tokens - 1, 8, 3)):
            if tokens < 1:
                continue
            cols = (steps if split == 1 else 3 * shape.warps_k) * step - 8 + ragged
            cases.append(
                random_case(rows, cols, tokens, number, gemv=shape.gemv, shape=shape.index,
                            split=split)
            )  # fmt: skip
    return cases


def planned_cases() -> list[Case]:
    """Sizes at every edge, as the host plans them; slices of larger weights."""
    cases = []
    for number, (rows, cols) in enumerate(product((1, 4, 65, 130), (1, 7, 8, 31, 64, 72, 264))):
        gemv = number % 2 == 1
        tokens = (1, 2, 3, 4)[number % 4] if gemv else (1, 8, 9, 16)[number // 2 % 4]
        cases.append(random_case(rows, cols, tokens, number, gemv=gemv))
    for number, (offset, gap) in enumerate(((8, 16), (1, 0), (0, 3), (4, 4))):
        for gemv in (False, True):
            cases.append(random_case(20, 296, 3, number, offset=offset, gap=gap, gemv=gemv))
    cases.append(random_case(130, 320, 33, 0))
    cases.append(random_case(100, 640, 64, 1))
    return cases


MATRIX = {"every compiled shape": lambda: compiled_cases(SHAPES), "planned": planned_cases}


def test_the_compiled_shapes_are_known():
    text = (KERNELS / PLAN).read_text()
    assert len(SHAPES) == text.count("  X(") + 2
    assert {shape.tokens for shape in FLAT} == {8, 16, 32, 64}
    assert {shape.tokens for shape in GEMV} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "every compiled shape" else name
        for name in MATRIX
    ],
)
def test_products(driver, cases):
    assert_exact(driver("dense_driver", "plain"), MATRIX[cases]())


def test_what_is_not_finite_stays_with_its_token_and_its_row(driver):
    """NaN in a token or a row of the weight; the columns end inside a step."""
    binary = driver("dense_driver", "plain")
    for gemv in (False, True):
        clean = random_case(70, 328, 3, 1, gemv=gemv)
        dirty = replace(clean, x=clean.x.clone(), weight=clean.weight.clone())
        dirty.x[1, 327] = torch.nan
        dirty.weight[17, 0] = torch.inf
        before, y = answers(binary, [clean, dirty])
        others = torch.ones_like(y, dtype=torch.bool)
        others[1], others[:, 17] = False, False
        assert torch.equal(y[others], before[others])
        assert y[1].isnan().all() and not y[:, 17].isfinite().any()
        assert torch.equal(y[0, 17], torch.inf * clean.x[0, 0].sign())


# ---- under sanitizers -------------------------------------------------------------------------

# Few and small, so that they are soon compiled and run: with one half of a fragment and with two
# fragments, with one warp along K and with several.
SMALL_FLAT, SMALL_GEMV = ("8, 1, 2, 2, 2, 1", "32, 2, 1, 2, 2, 1"), ("2, 2, 2, 2, 2, 1",)
# What orders memory, the waits for copies, and the end of each group of copies.
ORDER = r"\b(?:__syncthreads|__syncwarp|copy_async_wait<[\w -]+>|copy_async_commit)\(\);"
BARRIERS = 11


def plan_of_small_shapes() -> str:
    text = (KERNELS / PLAN).read_text()
    for name, shapes in (("FLAT", SMALL_FLAT), ("GEMV", SMALL_GEMV)):
        lines = "".join(f" \\\n  X({shape})" for shape in shapes)
        text, replaced = re.subn(
            rf"(#define FS_{name}_SHAPES\(X\))(?: *\\\n +X\(.*?\))+", rf"\1{lines}", text
        )
        assert replaced == 1
    return text


SMALL_PLAN = plan_of_small_shapes()
SMALL_SHAPES = compiled_shapes(SMALL_PLAN)


@pytest.fixture(scope="module")
def small_driver():
    """small_driver(sanitizer): for SMALL_SHAPES, soon compiled; WITHOUT leaves a barrier out."""
    headers, places = with_switched_barriers([f"cuda/{part}" for part in PARTS], ORDER)
    assert len(places) == BARRIERS
    return lambda sanitizer: compile_driver("dense_driver", sanitizer, headers | {PLAN: SMALL_PLAN})


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_products_under_sanitizers(small_driver, sanitizer):
    """Every kernel's pipeline and its end, cut and whole; slices; edges that nothing may cross."""
    cases = compiled_cases(SMALL_SHAPES)
    cases += [random_case(9, 43, 1, number, gemv=shape.gemv, shape=shape.index, split=1,
                          offset=3 * (not shape.aligned), gap=5)
              for number, shape in enumerate(SMALL_SHAPES) if not shape.aligned]  # fmt: skip
    cases = [replace(case, seed=SEEDS[number % 3]) for number, case in enumerate(cases)]
    for case, y in zip(cases, answers(small_driver(sanitizer), cases), strict=True):
        require_exact(case, y)


@pytest.mark.slow
def test_every_barrier_is_needed(small_driver):
    """And every wait for a copy, and the end of each group of copies."""
    binary = small_driver("thread")
    shapes = [shape for shape in SMALL_SHAPES if shape.aligned and shape.tokens != 8]
    cases = [
        random_case(40, 600, shape.tokens, number, gemv=shape.gemv, shape=shape.index,
                    split=split, seed=seed)
        for number, (shape, split, seed) in enumerate(product(shapes, (1, 3), SEEDS))
    ]  # fmt: skip

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(cases, emulated_dense.split(written, cases), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert [without for without in range(-1, BARRIERS) if caught(without)] == [*range(BARRIERS)]
