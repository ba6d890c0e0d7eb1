# SPDX-License-Identifier: Apache-2.0
"""The linear kernel of tiled_bitmap, its own source, run on the CPU by the emulator."""

from __future__ import annotations

import pytest
import torch
from emulated_linear import require_exact
from emulated_tiled_bitmap import (
    FULL_LINES,
    GPUS,
    LINEAR,
    SHAPES,
    WARPS,
    Case,
    Plan,
    random_case,
    require_all,
    run,
    sanitized_driver,
    split,
)
from emulation import (
    SANITIZED,
    UNTIL_A_RACE,
    is_caught,
)

DENSITIES = (0.5, 0.2, 1.0, 0.0, 0.08)
# Lines of a ring: for one unit of half zeros, so that one without stays in memory, and is
# multiplied there; for both; for two without.
ROOMS = (45, 120, 2 * FULL_LINES)


def planned(
    number: int, shape: int, warps: tuple[int, int], blocks: int, room: int = ROOMS[0]
) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, row_units, _, spreads = SHAPES[shape]
    if row_units * warps[0] * warps[1] * tokens > 64:
        warps = (1, 1)
    quarters = (9, 16, 4)[number % 3] * spreads  # what is fuller than that stays in memory, too
    plan = Plan(shape, *warps, quarters, 2 + number % 2, room * row_units, blocks)
    rows, cols = 16 * row_units * warps[0] + 11, 256 * (warps[1] + 1) - 7
    return random_case(rows, cols, tokens - number % 3, number, DENSITIES[number % 5], plan=plan)


@pytest.fixture(scope="module")
def planned_cases() -> list[Case]:
    """Every shape by every arrangement of warps, over densities and lengths of rings."""
    cases = []
    for shape in range(len(SHAPES)):
        for warps in WARPS[: 4 if SHAPES[shape][0] == 8 else 2]:
            number = len(cases)
            cases.append(planned(number, shape, warps, 1 + number % 3, ROOMS[number // 2 % 3]))
    return cases


def skewed_cases() -> list[Case]:
    """One dense row in 16; units that are empty beside full ones; columns that are full."""
    case = random_case(40, 700, 6, 2)
    row, units, columns = (torch.zeros_like(case.weight) for _ in range(3))
    row[5::16] = case.weight[5::16] + 1
    units[:16, 256:512] = units[32:, :256] = 1.5
    units[16:32, 512:] = case.weight[16:32, 512:]
    columns[:, 130:140] = columns[:, 3] = -0.75
    found = []
    for weight in (row, units, columns):
        for plan in (
            Plan(0, 2, 1, 0, 2, 46),
            Plan(1, 1, 2, 0, 2, 2 * FULL_LINES),
            Plan(2, 2, 1, 6, 2, 90),
        ):
            found.append(case.replace(weight=weight, plan=plan))
    return found


def test_every_compiled_shape_is_right(driver, planned_cases):
    require_all(driver(LINEAR, "plain"), planned_cases)


def test_skewed_weights(driver):
    require_all(driver(LINEAR, "plain"), skewed_cases())


@pytest.mark.parametrize("architecture", GPUS)
def test_every_product_as_it_is_planned(driver, architecture):
    gpu = GPUS[architecture]
    sizes = [(1, 1), (33, 100), (100, 600), (17, 257), (60, 300)]
    tokens = [1, 8, 13, 32, *([33, 64] if gpu[1] > 128 << 10 else [])]
    cases = [
        random_case(*sizes[number % 5], count, number, DENSITIES[number % 5], gpu=gpu)
        for number, count in enumerate(tokens)
    ]
    require_all(driver(LINEAR, "plain"), cases, ARCHITECTURE=architecture)


def test_schedules_give_the_same_bits(driver):
    """Also sums between blocks, whichever comes last."""
    for case in (planned(1, 1, (2, 2), 2), planned(5, 0, (1, 2), 3)):
        found = require_all(driver(LINEAR, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_plans_give_the_same_but_for_rounding(driver):
    case = random_case(70, 800, 5, 1, 0.4)
    plans = (Plan(0, 1, 1), Plan(1, 2, 2, 0, 2, 90, 4), Plan(2, 1, 3, 9, 2, 142, 3))
    require_all(driver(LINEAR, "plain"), [case.replace(plan=plan) for plan in plans])


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """Bit patterns are only moved; what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 2)
    weight, x = case.weight.clone(), case.x.clone()
    weight[9, 298], weight[20, 17], weight[30, 40] = torch.inf, torch.nan, 2.0**-24  # denormal
    x[1, 298], x[2, 298], x[3, 298] = torch.inf, torch.nan, 0
    wanted = x.double() @ weight.double().T + (0 if case.bias is None else case.bias.double())
    for plan in (Plan(0), Plan(0, 2, 2, 0, 2, 1, 2), Plan(2, 1, 2, 9, 2, 200)):
        ran = run(driver(LINEAR, "plain"), [case.replace(weight=weight, x=x, plan=plan)])
        (y,) = split(ran.stdout, [case])
        assert torch.equal(y.isnan(), wanted.isnan()) and torch.equal(y.isinf(), wanted.isinf())
        finite = wanted.isfinite()
        assert torch.allclose(y.double()[finite], wanted[finite], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(n, shape, (2, 2), 3, ROOMS[n % 3]) for n, shape in enumerate((0, 1, 2, 7))]
    cases += [random_case(33, 1000, 9, 3), *skewed_cases()[:4]]
    binary, _ = sanitized_driver(sanitizer)
    cases = [case.replace(seed=7) for case in cases]
    require_all(binary, cases)
    require_all(binary, cases[::2], ARCHITECTURE="80")  # which copies by lanes


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result.

    Before 9.0 at the latest: there all lanes copy and arrive, not one.
    """
    binary, places = sanitized_driver("thread")
    cases = [planned(1, 1, (2, 2), 3), planned(0, 0, (1, 2), 2)]  # with sums between blocks
    cases.append(random_case(60, 5890, 8, 3, 0.3, plan=Plan(0, 2, 1, 0, 2, 75)))  # reuses orders
    cases.append(random_case(16, 1790, 8, 4, 0.9, plan=Plan(0, 1, 1, 0, 2, 65)))  # some in memory
    cases.append(random_case(40, 1790, 8, 5, 0.3, plan=Plan(2, 1, 1, 7, 2, 70)))  # spread
    # First one whose blocks run one after the other: it catches most, with the fewest threads.
    cases = [cases[0], *(case.replace(seed=7) for case in cases)]
    spared = []
    places = {n: place for n, place in enumerate(places) if "mma_units" not in place}
    for number, place in places.items():

        def judge_all(written: bytes) -> None:
            for case, y in zip(cases, split(written, cases), strict=True):
                require_exact(case, y)

        without = {"WITHOUT": str(number), "TSAN_OPTIONS": UNTIL_A_RACE}
        if not any(
            is_caught(run(binary, cases, ARCHITECTURE=gpu, **without), judge_all)
            for gpu in ("90", "80")
        ):
            spared.append(place)
    assert places and spared == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(99), "no such shape"),
        (Plan(0, 6, 4), "fewer warps"),
        (Plan(0, x_stages=13), "1 to 12 stages"),
        (Plan(0, 15, 1, 0, 2, 200), "too little shared memory"),
        (Plan(0, 1, 1, 1), "where units are spread"),
        (Plan(2, 1, 1, 0), "where units are spread"),
        (Plan(0, blocks=7), "at least one step"),
    ):
        ran = run(driver(LINEAR, "plain"), [case.replace(plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    ran = run(driver(LINEAR, "plain"), [random_case(40, 300, 9, 2).replace(plan=Plan(0))])
    assert ran.returncode == 1 and "other numbers of tokens" in ran.stderr.decode()
