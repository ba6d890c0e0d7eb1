# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of nm_gather, their own source run on the CPU by the emulator."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from emulated_gather import (
    GROUPED,
    HOPPER,
    PLAN,
    SHAPES,
    SMALL,
    VALUES,
    Case,
    answers,
    numbers_of,
    random_case,
    require_exact,
    run,
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

PATTERNS = [(2, 4), (8, 32), (1, 8), (5, 8), (3, 12), (2, 32), (16, 200), (1, 1)]
PARTS = [
    *(f"cuda/nm_gather/{part}.cuh" for part in ("linear", "add_sums", "weight_ring", "stage_x")),
    "cuda/shared/partial_sums.cuh",
]


def planned_cases() -> list[Case]:
    """What the host plans for GPUs of few and many multiprocessors, of little and much memory."""
    sizes = [(1, 1), (7, 300), (33, 64), (64, 1030), (130, 257), (300, 600), (40, 2100)]
    tokens, lengths = cycle((1, 5, 8, 9, 16, 17, 33, 64)), cycle((8, 16, 32, 64, 128))
    patterns, gpus = cycle(PATTERNS), cycle((HOPPER, (2, HOPPER[1]), SMALL, (3, 163 << 10)))
    cases = []
    for number, (rows, cols) in enumerate(4 * sizes):
        gpu, count = next(gpus), next(tokens)
        count = min(count, 16) if gpu == SMALL else count
        n, m = next(patterns)
        length = next(lengths)
        values, group = VALUES[number // 2 % 3] if length >= 16 and count <= 32 else "native", None
        if number % 9 == 3 and length >= 32 and count <= 32:
            values, (n, m, group) = "int4", GROUPED[number % 4]
        cases.append(random_case(rows, cols, count, n, m, length, number, values, group, gpu=gpu))
    return cases


# Of every kind of values enough that each number of a shape occurs.
FEW = [covering(shapes) for shapes in SHAPES]


def compiled_cases(numbers: tuple[int, ...] = (0, 1)) -> list[Case]:
    """Every compiled shape: rows and depth cut in turns, one chunk of x and several."""
    plans = [(1, 3, 1, 1), (2, 2, 3, 1), (3, 1, 2, 2), (2, 1, 1, 8), (1, 8, 1, 2), (4, 2, 1, 1)]
    cases = []
    native, eight, four = SHAPES
    for shape, (tokens, unit_rows, *_) in enumerate(native + eight):
        codes = shape >= len(native)
        for number in numbers[:1] if codes else numbers:
            values = VALUES[1 + shape // 2 % 2] if codes else "native"
            plan = plans[(shape + 5 * number) % len(plans)]
            n, m = PATTERNS[(shape + number) % len(PATTERNS)]
            length = unit_rows * (1, 4)[number % 2] if unit_rows == 32 else unit_rows
            if tokens == 64 and plan[3] > 1:
                plan = (*plan[:3], 1)
            used = (tokens, tokens - 3)[number % 2]
            rows = 2 * unit_rows * plan[0] + 5
            plan = (shape, *plan)
            cases.append(random_case(rows, 2000, used, n, m, length, shape, values, plan=plan))
    for number, ((tokens, *_), (n, m, group)) in enumerate(zip(2 * four, cycle(GROUPED))):
        plan = (len(native + eight) + number % len(four), *plans[number])
        sizes = (32 * plan[1] + 5, 1300, tokens - number % 3)
        cases.append(random_case(*sizes, n, m, 32 << number % 2, number, "int4", group, plan=plan))
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
    assert_exact(driver("nm_gather/linear_driver", "plain"), planned_cases())


def test_products_of_every_compiled_shape(driver):
    assert_exact(driver("nm_gather/linear_driver", "plain"), compiled_cases())


@pytest.mark.slow
def test_products_under_the_address_sanitizer():
    """Of few shapes. Under the thread sanitizer they are smaller: test_every_barrier_is_needed."""
    kept = numbers_of(FEW, SHAPES)
    cases = [case for case in compiled_cases((0,)) if case.plan[0] in kept] + planned_cases()[:8]
    assert {case.plan[0] for case in cases} == {-1, *kept}
    cases = [replace(case, seed=7) for case in cases]
    binary = compile_driver("nm_gather/linear_driver", "address", with_few_shapes(PLAN, *FEW))
    found = answers(binary, cases)
    for case, y in zip(cases, found, strict=True):
        require_exact(case, y)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_token_and_meets_kept_columns_only(driver, value):
    binary = driver("nm_gather/linear_driver", "plain")
    cases = compiled_cases((0,))
    clean = answers(binary, cases)
    dirty = [replace(case, x=case.x.clone()) for case in cases]
    for number, case in enumerate(dirty):
        case.x[number % len(case.x), 7 * number % case.x.shape[1]] = value
    for number, (case, y, before) in enumerate(
        zip(dirty, answers(binary, dirty), clean, strict=True)
    ):
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
    for shape, (tokens, rows, *_) in enumerate(SHAPES[0]):
        case = random_case(2 * rows, 300, tokens, 1, 1, rows, shape, plan=(shape, 1, 3, 1, 1))
        weight = case.weight.clone()
        weight[5::9] = every_bit_pattern(tuple(weight[5::9].shape), weight.dtype, shape)
        cases.append(replace(case, weight=weight, packed=(), exact=None))
    found = answers(driver("nm_gather/linear_driver", "plain"), cases)
    for case, y in zip(cases, found, strict=True):
        rows = torch.arange(len(case.weight)) % 9 != 5
        bias = None if case.bias is None else case.bias[rows]
        require_exact(replace(case, exact=case.exact[rows], bias=bias), y[:, rows])
        poisoned = ~case.weight.isfinite().all(1)
        assert not y[:, poisoned].isfinite().any()


# ---- every barrier is needed --------------------------------------------------------------------

ORDER = (
    r"\b(?:\w+\.)?(?:__syncthreads|sync_threads_of|copy_async_commit|"
    r"copy_async_wait<[^>]*>|griddepcontrol_wait)\([^;{}]*\);"
)
# Units of each number of rows, planes of tokens, and values of each number of bits.
SMALL_SHAPES = ("X(8, 16, 3, 4) X(16, 32, 2, 4) X(32, 8, 3, 4)", "X(8, 32, 2, 4)", "X(8, 32, 2, 4)")


def small_cases() -> list[Case]:
    """Every small shape and value type, on every schedule."""
    kinds = [  # shape, tokens, pattern, vector length, values
        (0, 8, (4, 8), 16, "native", None),
        (1, 8, (4, 8), 32, "native", None),
        (2, 30, (4, 8), 8, "native", None),
        (3, 8, (4, 8), 32, "fp8_e4m3", None),
        (3, 7, (4, 8), 64, "int8", None),
        (4, 8, GROUPED[0][:2], 32, "int4", GROUPED[0][2]),
    ]
    return [
        random_case(70, 2000, tokens, *pattern, length, seed, values, group,
                    plan=(shape, 2, 2, 2, 1), seed=seed)
        for shape, tokens, pattern, length, values, group in kinds
        for seed in SEEDS
    ]  # fmt: skip


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer finds nothing, and without any one of the barriers it does."""
    headers, places = with_switched_barriers(PARTS, ORDER)
    assert len(places) >= 6
    headers |= with_shapes(PLAN, *SMALL_SHAPES)
    binary = compile_driver("nm_gather/linear_driver", "thread", headers)
    for case, y in zip(small_cases(), answers(binary, small_cases()), strict=True):
        require_exact(case, y)
    cases = small_cases()[: 2 * len(SEEDS)]  # values of any type wait at the same barriers

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(cases, split(written, cases), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    survivors = [place for number, place in enumerate(places) if not caught(number)]
    assert survivors == []


# ---- unpacking ----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", ["plain", *SANITIZED])
def test_unpack_gives_the_weight_back(driver, build):
    sizes = [(1, 1), (33, 70), (130, 300), (24, 1032), (64, 512)]
    cases = [
        random_case(
            *(*size, 1, *PATTERNS[(i + j) % len(PATTERNS)], (8, 16, 32, 128)[i], i + j),
            values="native" if i == 0 else VALUES[(i + j) % 3],
        )
        for i in range(4)
        for j, size in enumerate(sizes)
    ]
    cases += [
        random_case(*size, 1, n, m, 32 << i, i, "int4", group)
        for i, (size, (n, m, group)) in enumerate(zip(sizes[1:], GROUPED, strict=False))
        if i < 3
    ]
    fed = b""
    for number, case in enumerate(cases):
        pattern = [case.options[name] for name in ("n", "m", "vector_length")]
        bfloat16 = case.weight.dtype == torch.bfloat16
        header = [*case.weight.shape, *pattern, case.value_type, bfloat16]
        header += [SEEDS[number % 3], 1 + number % 2]
        fed += np.array(header, dtype=np.int64).tobytes()
        fed += b"".join(t.view(torch.uint8).numpy().tobytes() for t in case.packed)
    binary = driver("nm_gather/unpack_driver", build)
    ran = subprocess.run([binary], input=fed, capture_output=True, timeout=600, env=os.environ)
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    bits = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())
    parts = bits.split([case.weight.numel() for case in cases])
    for case, found in zip(cases, parts, strict=True):
        assert torch.equal(found.view(case.weight.shape), case.weight.view(torch.int16)), case
