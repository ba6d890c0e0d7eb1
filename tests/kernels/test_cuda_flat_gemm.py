# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of dense layers, their own source, run on the CPU by the emulator."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from emulated_dense import Case, answers, run
from emulated_linear import require_exact
from emulation import (
    EMULATOR_EXIT_CODE,
    KERNELS,
    RACE_EXIT_CODE,
    SEEDS,
    compile_driver,
    without_each_barrier,
)

HEADER = KERNELS / "cuda" / "dense_plan.h"
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


SHAPES = compiled_shapes(HEADER.read_text())
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
    text = HEADER.read_text()
    assert len(SHAPES) == text.count("  X(") + 2
    assert {shape.tokens for shape in FLAT} == {8, 16, 32, 64}
    assert {shape.tokens for shape in GEMV} == {1, 2, 4, 8}


@pytest.mark.parametrize("cases", MATRIX)
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


def with_small_shapes(include: Path, flat: tuple[str, ...] = SMALL_FLAT) -> list[Shape]:
    """Hides dense_plan.h by one with the small shapes."""
    text = HEADER.read_text()
    for name, shapes in (("FLAT", flat), ("GEMV", SMALL_GEMV)):
        lines = "".join(f" \\\n  X({shape})" for shape in shapes)
        text, replaced = re.subn(
            rf"(#define FS_{name}_SHAPES\(X\))(?: *\\\n +X\(.*?\))+", rf"\1{lines}", text
        )
        assert replaced == 1
    hidden = include / "cuda" / HEADER.name
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.write_text(text)
    return compiled_shapes(text)


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_products_under_sanitizers(tmp_path, sanitizer):
    """Every kernel's pipeline and its end, cut and whole; slices; edges that nothing may cross."""
    shapes = with_small_shapes(tmp_path)
    binary = compile_driver("dense_driver", sanitizer, tmp_path, include=tmp_path)
    cases = compiled_cases(shapes)
    cases += [random_case(9, 43, 1, number, gemv=shape.gemv, shape=shape.index, split=1,
                          offset=3 * (not shape.aligned), gap=5)
              for number, shape in enumerate(shapes) if not shape.aligned]  # fmt: skip
    cases = [replace(case, seed=SEEDS[number % 3]) for number, case in enumerate(cases)]
    for case, y in zip(cases, answers(binary, cases), strict=True):
        require_exact(case, y)


def is_caught(include: Path) -> bool:
    """By the thread sanitizer, by the emulator itself, or by a wrong result."""
    shapes = [shape for shape in with_small_shapes(include, SMALL_FLAT[1:]) if shape.aligned]
    binary = compile_driver("dense_driver", "thread quickly", include, include)
    cases = [
        random_case(40, 600, shape.tokens, number, gemv=shape.gemv, shape=shape.index,
                    split=split, seed=seed)
        for number, (shape, split, seed) in enumerate(product(shapes, (1, 3), SEEDS))
    ]  # fmt: skip
    ran = run(binary, cases, TSAN_OPTIONS="halt_on_error=1")
    if ran.returncode != 0:
        assert ran.returncode in (EMULATOR_EXIT_CODE, RACE_EXIT_CODE), ran.stderr
        return True
    try:
        for case, y in zip(cases, answers(binary, cases), strict=True):
            require_exact(case, y)
    except AssertionError:
        return True
    return False


def test_every_barrier_is_needed(tmp_path):
    """And every wait for a copy, and the end of each group of copies."""
    order = r"\b(?:__syncthreads|__syncwarp|copy_async_wait<[\w -]+>|copy_async_commit)\(\);"
    mutants = []
    for name in ("flat_gemm.cuh", "gemv.cuh", "dense.cuh"):
        mutants += without_each_barrier(KERNELS / "cuda" / name, tmp_path, order)
    assert len(mutants) == 11
    with ThreadPoolExecutor(2) as pool:
        caught = pool.map(is_caught, mutants)
        survivors = [mutant.name for mutant, seen in zip(mutants, caught, strict=True) if not seen]
    assert survivors == []
