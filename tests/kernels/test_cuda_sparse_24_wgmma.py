# SPDX-License-Identifier: Apache-2.0
"""The wgmma kernel of sparse_24, its own source, run on the CPU by the emulator."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from emulated_products import spared, token_scales
from emulated_sparse_24 import (
    CODES,
    Case,
    integer_product,
    judge,
    random_case,
    require_all,
    require_rounded,
    run,
    split,
)
from emulation import (
    EMULATOR_EXIT_CODE,
    KERNELS,
    SANITIZED,
    compile_driver,
    with_few_shapes,
    with_switched_barriers,
)

from flashsparse_plugin.formats.pattern.options import PatternOptions

DRIVER, CODES_X = "sparse_24/wgmma_driver", "sparse_24/wgmma_codes_driver"
HEADER = KERNELS / "cuda" / "sparse_24" / "wgmma_plan.h"
LISTED = re.findall(r"^  X\((\d+), (\d+), (\d+), ([\d |]+)\)", HEADER.read_text(), re.M)
# Tokens of a tile, groups of 64 rows, and how many of them a warpgroup multiplies.
SHAPES = [tuple(map(int, numbers)) for *numbers, _ in LISTED]
NATIVE = [shape for shape, (*_, bits) in enumerate(LISTED) if "16" in bits]


def shape_of(tokens: int, groups: int, high: int = 1) -> int:
    """The number of a compiled shape."""
    return SHAPES.index((tokens, groups, high))


HIGH, WIDE_HIGH = shape_of(32, 4, 2), shape_of(32, 6, 2)


class Plan(NamedTuple):
    """The numbers of WgmmaPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    down: int = 1
    depth: int = 1
    stages: int = 5  # panels of x, of which most shapes take two at once
    clusters: int = 1


def planned(number: int, shape: int, down: int, clusters: int, stages: int = 5) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, groups, _ = SHAPES[shape]
    rows = 64 * groups * down + (17 if clusters > 1 else -21)
    plan = Plan(shape, down, 1, stages, clusters)
    return random_case(rows, 300, tokens // 2 + 3 * number, number, plan=plan)


def test_every_compiled_shape_is_right(driver):
    """Alone, in clusters of each size; tiles that clusters share, own, or own two of."""
    cases = []
    for shape in NATIVE:
        for down in (1, 2) if SHAPES[shape][1] == 2 else (1,):
            number = len(cases)
            cases.append(planned(number, shape, down, 1 + number % 3, 4 + number % 2))
        if SHAPES[shape][0] % 64:  # sums of clusters are added up in other portions
            cases.append(planned(len(cases), shape, 1, 3))
    cases.append(planned(1, 0, 4, 1))
    require_all(driver(DRIVER, "plain"), cases)


def test_many_tokens_take_several_tiles(driver):
    case = random_case(130, 270, 64 * 2 + 5, 4, plan=Plan(0, 1, 1, 4, 2))
    require_all(driver(DRIVER, "plain"), [case, replace(case, plan=Plan(0, 2, 1, 4, 1))])


def test_blocks_behind_each_other_add_up_their_sums(driver):
    """Also where the last of them has less to do, and where rows and tokens end inside a tile."""
    cases = [
        random_case(70, 513, 39, 1, plan=Plan(0, 1, 2, 4, 1)),
        random_case(130, 1100, 70, 2, plan=Plan(0, 1, 4, 4, 4)),
        random_case(200, 600, 9, 4, plan=Plan(0, 2, 2, 5, 1)),
        random_case(60, 300, 97, 5, plan=Plan(shape_of(128, 2), 1, 2, 4, 1)),
        random_case(60, 520, 97, 6, plan=Plan(shape_of(160, 2), 1, 2, 4, 1)),
    ]
    require_all(driver(DRIVER, "plain"), cases)


def of_codes(values: str, group: int | None, number: int, plan: Plan) -> Case:
    """A product of codes over several units, in both dtypes; of an even number by scaled tokens."""
    options = PatternOptions(n=2, m=4, values=values, group=group)
    cols = 1400 if plan.clusters > 1 else 700
    case = random_case(140, cols, 9, number, plan=plan, options=options, rounds=group is not None)
    return replace(case, x_scales=None if number % 2 else token_scales(case.x))


def code_plans(values: str, group: int | None) -> list[Plan]:
    """Launches of shapes that load one unit at once and several; ranges that begin anywhere."""
    several = shape_of(64, 3)
    wide = ((96, 3), (144, 3)) if values == "int4" or group is not None else ((96, 4),)
    plans = [Plan(several, 1, 1, 4, 3), Plan(several, 1, 2, 4, 1)]
    return plans + [Plan(shape_of(*shape), 1, 1, 4, 1) for shape in wide]


def high_cases(values: str) -> list[Case]:
    """Products of codes by warpgroups of two groups of rows, also where the second has none.

    Also where clusters share tiles, and where blocks stand below and behind each other.
    """
    options = PatternOptions(n=2, m=4, values=values)
    return [
        random_case(345, 1400, 9, 1, plan=Plan(WIDE_HIGH, 1, 1, 16, 1), options=options),
        random_case(300, 900, 33, 2, plan=Plan(HIGH, 1, 1, 5, 3), options=options),
        random_case(500, 1400, 20, 3, plan=Plan(WIDE_HIGH, 2, 2, 6, 1), options=options),
    ]


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_are_multiplied(driver, values, group):
    plans = code_plans(values, group)
    cases = [of_codes(values, group, number, plan) for plan in plans for number in (1, 2)]
    require_all(driver(DRIVER, "plain"), cases)
    found = require_all(driver(DRIVER, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize("values", ["fp8_e4m3", "int8"])
def test_codes_are_multiplied_by_two_groups_of_rows_a_warpgroup(driver, values):
    for case in high_cases(values):
        found = require_all(driver(DRIVER, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_take_infinity_and_nan_of_x_where_they_are_kept(driver, values, group):
    case = of_codes(values, group, 1, code_plans(values, group)[0])
    x, column = case.x.clone(), int((case.exact[0] != 0).nonzero()[-1])
    x[1, column], x[2, column] = torch.inf, torch.nan
    ran = run(driver(DRIVER, "plain"), [replace(case, x=x)])
    (y,) = split(ran.stdout, [case])
    kept = case.exact[:, column] != 0
    assert not torch.isfinite(y[1:3, kept]).any()
    full = (case.exact.view(140, -1, 4) != 0).sum(-1)[:, column // 4] == 2
    assert torch.isfinite(y[1:3, full & ~kept]).all() and torch.isfinite(y[0]).all()


ROUNDED = ("fp8_e4m3", "int8")


def rounded_cases(values: str) -> list[Case]:
    """Products by codes of x; of one token nothing is left, another's largest is tiny."""
    plans = [*code_plans(values, None), Plan(shape_of(64, 3), 2, 1, 4, 1)]
    cases = [of_codes(values, None, number, plan) for plan in plans for number in (1, 2)]
    cases = [replace(case, x_scales=None) for case in cases]
    cases[0].x[3], cases[0].x[4] = 0, cases[0].x[4] * 1e-20
    return cases + high_cases(values)


@pytest.mark.parametrize("values", ROUNDED)
def test_activations_are_quantised_and_multiplied(driver, values):
    cases = rounded_cases(values)
    require_rounded(driver(CODES_X, "plain"), cases)
    found = require_rounded(driver(CODES_X, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


def test_sums_of_int8_are_exact(driver):
    """To the last bit, wherever they are added up: integers, rounded once, and then scaled.

    The last of them has more bits than a float.
    """
    cases = rounded_cases("int8")
    options = PatternOptions(n=2, m=4, values="int8")
    wide = random_case(40, 4100, 5, plan=Plan(HIGH, 1, 1, 4, 2), options=options)
    weight = torch.where(wide.weight == 0, 0, wide.weight.abs() + 99)
    cases.append(replace(wide, x=wide.x.abs() + 99, weight=weight))
    cases = [replace(case, bias=None) for case in cases]
    ran = run(driver(CODES_X, "plain"), cases)
    for case, y in zip(cases, split(ran.stdout, cases), strict=True):
        sums, exact = integer_product(case)
        assert torch.equal(y, exact)
    assert (sums.float().long() != sums).any()


@pytest.mark.parametrize("values", ROUNDED)
def test_rounded_activations_spoil_no_other_token(driver, values):
    """NaN or an infinity makes a token's scale so, and all that the token gives NaN."""
    case = of_codes(values, None, 1, code_plans(values, None)[0])
    x, column = case.x.clone(), int((case.exact[0] != 0).nonzero()[-1])
    x[1, column], x[2, column] = torch.inf, torch.nan
    ran = run(driver(CODES_X, "plain"), [replace(case, x=x)])
    (y,) = split(ran.stdout, [case])
    assert torch.isnan(y[1:3]).all()
    others = torch.tensor([token not in (1, 2) for token in range(9)])
    assert torch.isfinite(y[others]).all()


def test_every_product_as_it_is_planned(driver):
    sizes = [(1, 1, 1), (33, 100, 40), (200, 513, 70)]
    cases = [random_case(*size, n, plan=Plan()) for n, size in enumerate(sizes)]
    require_all(driver(DRIVER, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    """Also sums between clusters, whichever comes last."""
    case = random_case(140, 800, 9, 1, plan=Plan(0, 2, 1, 4, 3))
    for each in (case, replace(case, plan=Plan(0, 1, 2, 4, 2))):
        found = require_all(driver(DRIVER, "plain"), each.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """Of weights that are kept; and what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 2, plan=Plan(0, 1, 1, 4, 1))
    weight, x = case.weight.clone(), case.x.clone()
    row, column = (weight[:, 290:] != 0).nonzero()[-1].tolist()
    weight[row, 290 + column] = torch.inf
    for token, value in ((1, torch.inf), (2, torch.nan), (3, 0)):
        x[token, 290 + column] = value
    ran = run(driver(DRIVER, "plain"), [replace(case, weight=weight, x=x)])
    (y,) = split(ran.stdout, [case])
    assert torch.isinf(y[[0, 1, 4, 5], row]).all() and torch.isnan(y[[2, 3], row]).all()
    others = torch.arange(40) != row
    assert torch.isfinite(y[0][others]).all()
    kept = weight[:, 290 + column] != 0
    assert not torch.isfinite(y[1][kept]).any() and not torch.isfinite(y[2][kept]).any()
    full = (weight.view(40, -1, 4) != 0).sum(-1)[:, (290 + column) // 4] == 2
    assert torch.isfinite(y[1][others & full & ~kept]).all()


# Shapes of the cases below, which the sanitizers' programs are compiled for.
FEW_SHAPES = with_few_shapes(
    "cuda/sparse_24/wgmma_plan.h",
    sorted([0, 2, shape_of(64, 3), HIGH, WIDE_HIGH, shape_of(96, 4)]),
)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(3, 0, 2, 2, 4), planned(2, 2, 1, 1), random_case(17, 257, 70, 4, plan=Plan())]
    cases.append(random_case(100, 700, 11, 3, plan=Plan(0, 1, 2, 4, 1)))
    cases += [of_codes(values, group, 2, code_plans(values, group)[0]) for values, group in CODES]
    cases += high_cases("fp8_e4m3")

    def made(name: str) -> Path:
        switched = sanitizer == "thread"
        return switched_driver(name)[0] if switched else compile_driver(name, sanitizer, FEW_SHAPES)

    require_all(made(DRIVER), [replace(case, seed=7) for case in cases])
    for kind in ROUNDED:
        cases = [replace(case, seed=7) for case in rounded_cases(kind)[::2]]
        require_rounded(made(CODES_X), cases)


PARTS = {
    DRIVER: [
        f"cuda/{part}.cuh"
        for part in (
            "sparse_24/wgmma",
            *("mma_units/wgmma_x", "mma_units/wgmma_sums", "mma_units/partial_sums"),
        )
    ],
    CODES_X: ["cuda/mma_units/quantise_x.cuh"],
}


def switched_driver(name: str) -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    waits = "__sync[a-z]*|cluster_barrier_relaxed"
    waits += "|mbarrier_(?:wait|arrive|release)[a-z_]*|wgmma_[bcw][a-z]*"
    headers, places = with_switched_barriers(PARTS[name], rf"(?:detail::)?(?:{waits})\([^;]*\);")
    return compile_driver(name, "thread", headers | FEW_SHAPES), places


def unspared(driver: str, cases: list[Case], judge_one) -> list[str]:
    """The barriers of headers without which nothing is found: no race, deadlock or wrong result."""
    binary, places = switched_driver(driver)
    return spared(binary, places, cases, judge_one)


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    # Tiles that clusters share, and stages of x that are used again; clusters that run at once.
    case = random_case(140, 600, 9, 1, plan=Plan(0, 2, 1, 4, 3))
    cases = [case, replace(case, plan=Plan(0, 1, 1, 4, 3), seed=7)]
    cases.append(replace(case, plan=Plan(0, 1, 2, 4, 2)))
    # With many stages of x a block may end before another of its cluster has released the last.
    cases.append(replace(random_case(60, 600, 9, 1, plan=Plan(0, 2, 1, 16, 1)), seed=1))
    cases += high_cases("fp8_e4m3")
    assert unspared(DRIVER, cases, judge) == []


@pytest.mark.slow
def test_no_barrier_of_the_quantising_kernel_can_be_spared():
    cases = [of_codes("fp8_e4m3", None, 1, Plan(HIGH, 1, 1, 4, 1))]
    assert unspared(CODES_X, cases, lambda case, y: None) == []


@pytest.mark.slow
def test_registers_of_a_product_that_are_overwritten_are_caught():
    """A is the tensor core's until the product is waited for: where values are converted, the next
    one is made beside it.
    """
    header = "cuda/sparse_24/wgmma.cuh"
    text = (KERNELS / header).read_text()
    early = text.replace("a_[panel % 2]", "a_[0]")
    assert early != text
    binary = compile_driver(DRIVER, "plain", {header: early})
    converted = of_codes("fp8_e4m3", None, 1, code_plans("fp8_e4m3", None)[0])
    ran = run(binary, [converted])
    assert ran.returncode == EMULATOR_EXIT_CODE
    assert "registers of a wgmma" in ran.stderr.decode()


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(0, 1, 1, 3), "two stages at least"),
        (Plan(99), "no such shape"),
        (Plan(0, 3), "1, 2, 4 or 8 blocks"),
        (Plan(0, 4, 4), "1, 2, 4 or 8 blocks"),
        (Plan(shape_of(160, 2), 8), "the tokens of a tile in eights"),
        (Plan(shape_of(224, 2), 1, 8), "the tokens of a tile in eights"),
        (Plan(shape_of(96, 4), 1, 1, 4, 1), "values of this type have no such shape"),
        (Plan(0, 1, 1, 17), "2 to 16 stages"),
        (Plan(len(SHAPES) - 1, 1, 1, 16), "too little shared memory"),
        (Plan(0, 1, 1, 4, 3), "at least one step"),
        (Plan(0, 1, 4), "fewer units of columns"),
        (Plan(0, 1, 2, 4, 2), "as many clusters as tiles"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    ran = run(driver(DRIVER, "plain"), [of_codes("int4", 128, 1, Plan(0, 1, 1, 4, 1))])
    assert ran.returncode == 1 and "no such shape" in ran.stderr.decode()
    wide = of_codes("int8", None, 1, Plan(HIGH, 1, 1, 4, 1))
    header = wide.encode()[: 16 * 8]
    header = header[:8] + (2**18 + 1).to_bytes(8, "little") + header[16:]
    ran = subprocess.run([str(driver(CODES_X, "plain"))], input=header, capture_output=True)
    assert ran.returncode == 1 and "262144 columns of int8" in ran.stderr.decode()
