# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of nm_gather for many tokens, run on the CPU by the emulator."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_gather import (
    GROUPED,
    HOPPER,
    SMALL,
    VALUES,
    Case,
    answers,
    numbers_of,
    random_case,
    require_exact,
    run,
    shapes_of,
    split,
    with_shapes,
)
from emulation import (
    SANITIZED,
    SEEDS,
    UNTIL_A_RACE,
    compile_driver,
    covering,
    is_caught,
    with_few_shapes,
    with_switched_barriers,
)
from kernel_weights import every_bit_pattern
from torch import Tensor

from flashsparse_plugin.formats.pattern.nm_gather.layout import column_of

PLAN = "cuda/nm_gather/tiles_plan.h"
# Rows and tokens of a warp, warps along the tokens, sets of warps along the rows.
SHAPES = shapes_of(PLAN)
PATTERNS = [(2, 4), (8, 32), (1, 8), (5, 8), (3, 12), (2, 32), (16, 200), (1, 1)]
DRIVER = "nm_gather/tiles_driver"
A100 = (3, 163 << 10)


# ---- x in tiles ---------------------------------------------------------------------------------


def tiles_of(x: Tensor, columns: int) -> Tensor:
    """x_tiles by its definition in transpose_x.cuh."""
    tokens, cols = x.shape
    tiles = -(-tokens // 64)
    padded = x.new_zeros(tiles * 64, columns)
    padded[:tokens, : min(cols, columns)] = x[:, :columns]
    row, chunk = torch.arange(columns)[:, None], torch.arange(8)
    by_row = padded[:, column_of(row.flatten())].view(tiles, 8, 8, columns)
    stored = by_row.permute(0, 3, 1, 2)  # tile, row, chunk of 8 tokens, token
    return stored[:, row, chunk ^ row % 8].reshape(tiles, columns, 64)


@pytest.mark.parametrize("build", ["plain", *SANITIZED])
def test_x_is_transposed_into_tiles_of_64_tokens(driver, build):
    # tokens, x_stride, columns, blocks that share the tiles; fewer columns than x has, and more
    sizes = [
        (1, 4, 32, 1),
        (64, 64, 256, 1),
        (65, 300, 320, 2),
        (200, 512, 512, 3),
        (130, 68, 224, 1),
    ]
    inputs, fed = [], b""
    for number, (tokens, stride, columns, blocks) in enumerate(sizes):
        x = torch.randint(-(2**15), 2**15, (tokens, stride)).to(torch.int16)
        header = [tokens, stride, columns, blocks, SEEDS[number % 3]]
        fed += np.array(header, dtype=np.int64).tobytes() + x.numpy().tobytes()
        inputs.append((x, columns))
    binary = driver("nm_gather/transpose_x_driver", build)
    ran = subprocess.run([binary], input=fed, capture_output=True, timeout=600)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    written = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())
    expected = [tiles_of(*each) for each in inputs]
    for found, tiles in zip(written.split([t.numel() for t in expected]), expected, strict=True):
        assert torch.equal(found.view(tiles.shape), tiles), tiles.shape


# ---- the product --------------------------------------------------------------------------------


def planned_cases() -> list[Case]:
    """What the host plans for GPUs of few and many multiprocessors, of little and much memory."""
    sizes = [(1, 1), (33, 64), (130, 257), (70, 600), (40, 2100)]
    tokens, lengths = cycle((1, 65, 33, 64, 130, 200)), cycle((16, 32, 64, 128))
    patterns, gpus = cycle(PATTERNS), cycle((HOPPER, (2, HOPPER[1]), SMALL, A100))
    return [
        random_case(
            *(rows, cols, next(tokens), *next(patterns), next(lengths), number, VALUES[number % 3]),
            gpu=next(gpus), plan=(-1, 0, 0, 0, 0, 0, 0),
        )
        for number, (rows, cols) in enumerate(2 * sizes)
    ]  # fmt: skip


# Of every kind of values enough that each number of a shape occurs.
FEW = [covering(shapes) for shapes in SHAPES]


def compiled_cases(turns: int = 2) -> list[Case]:
    """Every compiled shape: few and many stages, blocks that share rows and tokens, or sums."""
    cuts = [  # row_warps, splits, x_stages, weight_stages, band, cluster
        (1, 2, 1, 1, 2, 1),
        (1, 4, 2, 3, 4, 4),
        (2, 3, 2, 2, 1, 3),
        (1, 1, 2, 2, 2, 1),
        (2, 1, 1, 3, 1, 1),
    ]
    cases = []
    native, eight, four = SHAPES
    for shape, (warp_rows, warp_tokens, token_warps, _) in enumerate(native + eight + four):
        codes = shape >= len(native)
        for turn in range(1 if codes else turns):
            number, group = shape % len(native) + turn, None
            values = VALUES[1 + shape // 2 % 2] if codes else "native"
            row_warps, *cut = cuts[number % len(cuts)]
            n, m = PATTERNS[number % (len(PATTERNS) - 2)]
            if shape >= len(native + eight):
                values, (n, m, group) = "int4", GROUPED[shape % 4]
            length = warp_rows * (2 if warp_rows >= 32 and turn else 1)
            rows, tokens = warp_rows * row_warps + 5, warp_tokens * token_warps
            more = number % 3 == 0 and tokens >= 64
            cols, used = 1040, tokens + 3 if more else tokens - 3
            plan = (shape, row_warps, *cut)
            case = (rows, cols, used, n, m, length, number, values, group)
            cases.append(random_case(*case, plan=plan))
    return cases


def assert_exact(binary, cases: list[Case]) -> None:
    """Every case is right, and has the same bits on every schedule."""
    expected = answers(binary, [replace(case, seed=SEEDS[0]) for case in cases])
    for case, y in zip(cases, expected, strict=True):
        require_exact(case, y)
    for seed in SEEDS[1:]:
        again = answers(binary, [replace(case, seed=seed) for case in cases])
        for case, y, same in zip(cases, again, expected, strict=True):
            assert torch.equal(y.view(torch.int16), same.view(torch.int16)), f"{case}, not {seed}"


def test_planned_products(driver):
    assert_exact(driver(DRIVER, "plain"), planned_cases())


def test_products_of_every_compiled_shape(driver):
    assert_exact(driver(DRIVER, "plain"), compiled_cases())


@pytest.mark.slow
def test_products_under_the_address_sanitizer():
    """Of few shapes. Under the thread sanitizer they are smaller: test_every_barrier_is_needed."""
    kept = numbers_of(FEW, SHAPES)
    cases = [case for case in compiled_cases(1) if case.plan[0] in kept] + planned_cases()[:4]
    assert {case.plan[0] for case in cases} == {-1, *kept}
    cases = [replace(case, seed=7) for case in cases]
    binary = compile_driver(DRIVER, "address", with_few_shapes(PLAN, *FEW))
    for case, y in zip(cases, answers(binary, cases), strict=True):
        require_exact(case, y)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_token_and_meets_kept_columns_only(driver, value):
    cases = compiled_cases(1)
    clean = answers(driver(DRIVER, "plain"), cases)
    dirty = [replace(case, x=case.x.clone()) for case in cases]
    for number, case in enumerate(dirty):
        case.x[number % len(case.x), 7 * number % case.x.shape[1]] = value
    found = answers(driver(DRIVER, "plain"), dirty)
    for number, (case, y, before) in enumerate(zip(dirty, found, clean, strict=True)):
        token, column = number % len(case.x), 7 * number % case.x.shape[1]
        others = torch.arange(len(y)) != token
        assert torch.equal(y[others], before[others]), case
        kept = case.exact[:, column] != 0
        assert not y[token, kept].isfinite().any(), case
        if value == float("inf"):  # no padding met it, which would have made a NaN
            assert not y[token, kept].isnan().any(), case


def test_weights_of_every_bit_pattern(driver):
    """NaN and infinities in a row of the weight stay in that feature; the rest is a product."""
    cases = []
    for shape, (warp_rows, warp_tokens, *_) in enumerate(SHAPES[0]):
        plan = (shape, 1, 1, 1, 2, 1, 1)
        case = random_case(
            warp_rows, 200, warp_tokens - 8, 1, 1, min(warp_rows, 64), shape, plan=plan
        )
        weight = case.weight.clone()
        weight[5::9] = every_bit_pattern(tuple(weight[5::9].shape), weight.dtype, shape)
        cases.append(replace(case, weight=weight, packed=(), exact=None))
    for case, y in zip(cases, answers(driver(DRIVER, "plain"), cases), strict=True):
        rows = torch.arange(len(case.weight)) % 9 != 5
        bias = None if case.bias is None else case.bias[rows]
        require_exact(replace(case, exact=case.exact[rows], bias=bias), y[:, rows])
        assert not y[:, ~case.weight.isfinite().all(1)].isfinite().any()


# ---- every barrier is needed, and either way to copy works --------------------------------------

ORDER = (
    r"\b(?:\w+\.)?(?:__syncthreads|__syncwarp|sync_threads_of|wait_full|wait_empty|release|"
    r"expect_runs|arrive_after_runs|sync_cluster)\([^;{}]*\);"
)
PARTS = [
    *(f"cuda/nm_gather/{part}.cuh" for part in ("tiles", "tiles_rings", "tiles_y", "add_sums")),
    "cuda/shared/partial_sums.cuh",
]


SMALL_SHAPES = ("X(16, 64, 2, 1) X(64, 32, 1, 1)", "X(16, 32, 1, 1)", "X(32, 32, 1, 1)")


def small_cases(splits: int, cluster: int) -> list[Case]:
    """Three blocks of rows and two of tokens, more than run at once."""
    plan, gpu = (0, 1, splits, 1, 2, 2, cluster), (2, HOPPER[1])
    return [
        random_case(40, 700, 140, 4, 8, 16, seed, plan=plan, gpu=gpu, seed=seed) for seed in SEEDS
    ]


def small_cases_of_each_kind() -> list[Case]:
    """Units of 16 rows and more, values of each type, sums of splits and none."""
    kinds = [  # shape, rows of a warp, tokens, pattern, values
        (0, 16, 140, (4, 8), "native", None),
        (1, 64, 30, (4, 8), "native", None),
        (2, 16, 30, (4, 8), "fp8_e4m3", None),
        (2, 16, 30, (2, 4), "int8", None),
        (3, 32, 30, GROUPED[0][:2], "int4", GROUPED[0][2]),
    ]
    return [
        random_case(2 * rows + 5, 700, tokens, *pattern, rows, number, values, group,
                    plan=(shape, 1, splits, 1, 2, 2, cluster), gpu=(2, HOPPER[1]), seed=7)
        for number, (shape, rows, tokens, pattern, values, group) in enumerate(kinds)
        for splits, cluster in CUTS
    ]  # fmt: skip


CUTS = ((1, 1), (2, 1), (2, 2))


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    headers, places = with_switched_barriers(PARTS, ORDER)
    return compile_driver(DRIVER, "thread", headers | with_shapes(PLAN, *SMALL_SHAPES)), places


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer finds nothing, and without any one of the barriers it does."""
    binary, places = switched_driver()
    assert len(places) >= 15
    cases = small_cases_of_each_kind()
    for case, y in zip(cases, answers(binary, cases), strict=True):
        require_exact(case, y)
    cases = [case for cut in CUTS for case in small_cases(*cut)]

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(cases, split(written, cases), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert not caught(-1)
    assert [place for number, place in enumerate(places) if not caught(number)] == []


@pytest.mark.parametrize("sanitizer", ["plain", pytest.param("thread", marks=pytest.mark.slow)])
def test_gpus_before_hopper_copy_by_lanes(driver, sanitizer):
    if sanitizer == "thread":
        binary, cases = switched_driver()[0], small_cases(2, 1)
    else:
        binary = driver(DRIVER, sanitizer)
        cases = [case for case in planned_cases() if case.gpu in (SMALL, A100)]
    for case, y in zip(cases, answers(binary, cases, ARCHITECTURE="80"), strict=True):
        require_exact(case, y)
