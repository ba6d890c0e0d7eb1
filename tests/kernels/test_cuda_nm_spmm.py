# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of nm_spmm, their own source run on the CPU by the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from emulated_nm_spmm import (
    COMPILED,
    HOPPER,
    KERNEL,
    PLAN,
    SMALL,
    Case,
    answers,
    random_case,
    require_exact,
    run,
    split,
)
from emulation import (
    KERNELS,
    SEEDS,
    UNTIL_A_RACE,
    compile_driver,
    is_caught,
    with_switched_barriers,
)

PATTERNS = [(8, 32), (2, 4), (4, 32), (16, 32), (3, 5), (1, 8), (32, 32), (12, 32), (2, 100)]
PARTS = [
    *(
        f"cuda/nm_spmm/{part}.cuh"
        for part in ("linear", "write_y", "stage", "transpose", "multiply")
    ),
    "cuda/shared/partial_sums.cuh",
]


def planned_cases() -> list[Case]:
    """What the host plans for GPUs of few and many multiprocessors, of little and much memory."""
    sizes = [(1, 1), (7, 300), (33, 64), (130, 257), (64, 1030), (260, 90)]
    tokens, lengths = cycle((1, 9, 16, 33, 70, 3, 130)), cycle((32, 4, 8, 128, 16, 64))
    patterns, gpus = cycle(PATTERNS), cycle((HOPPER, (2, HOPPER[1]), SMALL, (1, 163 << 10)))
    return [
        random_case(*size, next(tokens), *next(patterns), next(lengths), number, gpu=next(gpus))
        for number, size in enumerate(2 * sizes)
    ]


def compiled_cases() -> list[Case]:
    """Every compiled kernel: several tiles with their edges, and splits by turns."""
    cases = []
    for number, kernel in enumerate(COMPILED):
        n, m = PATTERNS[number % len(PATTERNS)]
        length = (32, 8, 128, 16, 64, max(kernel.thread_rows, 4))[number % 6]
        tokens, rows = kernel.tokens + 5, kernel.rows + 7 + number % 2
        plan = (number, (1, 3, 2)[number % 3])
        cases.append(random_case(rows, 515, tokens, n, m, length, number, plan=plan))
    return cases


def assert_exact(binary, cases: list[Case]) -> None:
    """Every case is right, and has the same bits on every schedule."""
    expected = answers(binary, [replace(case, seed=SEEDS[0]) for case in cases])
    for case, y in zip(cases, expected, strict=True):
        require_exact(case, y)
    for seed in SEEDS[1:]:
        again = answers(binary, [replace(case, seed=seed) for case in cases])
        for case, y, same in zip(cases, again, expected, strict=True):
            assert torch.equal(y, same), f"{case}, not {seed}"


def test_planned_products(driver):
    assert_exact(driver("nm_spmm/linear_driver", "plain"), planned_cases())


def test_products_of_every_compiled_kernel(driver):
    assert_exact(driver("nm_spmm/linear_driver", "plain"), compiled_cases())


@pytest.mark.slow
def test_products_under_the_address_sanitizer(driver):
    """Under the thread sanitizer they are smaller: see test_every_barrier_is_needed."""
    cases = [replace(case, seed=7) for case in (*compiled_cases(), *planned_cases()[:4])]
    found = answers(driver("nm_spmm/linear_driver", "address"), cases)
    for case, y in zip(cases, found, strict=True):
        require_exact(case, y)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_token_and_meets_kept_columns_only(driver, value):
    binary = driver("nm_spmm/linear_driver", "plain")
    cases = compiled_cases()
    dirty = [replace(case, x=case.x.clone()) for case in cases]
    for number, case in enumerate(dirty):
        case.x[number % len(case.x), 7 * number % case.x.shape[1]] = value
    for number, (case, y, before) in enumerate(
        zip(dirty, answers(binary, dirty), answers(binary, cases), strict=True)
    ):
        token, column = number % len(case.x), 7 * number % case.x.shape[1]
        others = torch.arange(len(y)) != token
        assert torch.equal(y[others], before[others]), case
        kept = case.weight[:, column] != 0
        assert not y[token, kept].isfinite().any(), case
        # Where no row of a group keeps the column, its token is not multiplied by padding either.
        length = case.options["vector_length"]
        other = torch.cat([(~part.any()).expand(len(part)) for part in kept.split(length)])
        assert y[token, other].isfinite().all(), case


# ---- every barrier is needed --------------------------------------------------------------------

ORDER = r"\b(?:\w+\.)?(?:__syncthreads|copy_async_commit|copy_async_wait<[^>]*>)\([^;{}]*\);"
# Small tiles with each way to bring panels.
SMALL_KERNELS = " ".join(
    f"X(32, 32, 4, 4, 4, {stages}, {packing}, 1)"
    for stages in (1, 2)
    for packing in ("false", "true")
)


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer finds nothing, and without any one of the barriers it does."""
    headers, places = with_switched_barriers(PARTS, ORDER)
    assert len(places) >= 10
    text, replaced = re.subn(
        rf"(#define FS_NM_SPMM_KERNELS\(X\))(?: *\\\n{KERNEL})+",
        lambda found: f"{found[1]} {SMALL_KERNELS}",
        (KERNELS / PLAN).read_text(),
    )
    assert replaced == 1
    binary = compile_driver("nm_spmm/linear_driver", "thread", headers | {PLAN: text})
    cases = [
        random_case(40, 300, 33, 8, 32, 16, seed, plan=(kernel, 2), seed=seed)
        for kernel in range(4)
        for seed in SEEDS
    ]

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(cases, split(written, cases), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert not caught(-1)
    survivors = [place for number, place in enumerate(places) if not caught(number)]
    assert survivors == []
