# SPDX-License-Identifier: Apache-2.0
"""The wgmma kernel of hybrid_units, its own source, run on the CPU by the emulator.

All its barriers are those of sparse_24's kernel, whose tests show that none of them can be spared.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from emulated_hybrid_units import Case, answers, random_case, require_all
from emulated_products import run
from emulation import KERNELS, SANITIZED, compile_driver, with_few_shapes

from flashsparse_plugin.formats.pattern.hybrid_24.layout import keep_dense

DRIVER = "hybrid_units/wgmma_driver"
PLAN_HEADER = "cuda/hybrid_units/wgmma_plan.h"
LISTED = re.findall(r"^  X\((\d+), (\d+), ([\d |]+)\)", (KERNELS / PLAN_HEADER).read_text(), re.M)
SHAPES = [(int(tokens), int(groups)) for tokens, groups, _ in LISTED]
NATIVE = [shape for shape, (*_, bits) in enumerate(LISTED) if "16" in bits]
CODES = [("fp8_e4m3", None), ("int8", None), *(("int4", group) for group in (None, 32, 64, 128))]


class Plan(NamedTuple):
    """The numbers of WgmmaPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    down: int = 1
    depth: int = 1
    stages: int = 4  # panels of x, of which most shapes take two at once
    clusters: int = 1


FIRST = SHAPES.index((64, 2))  # which has all kinds of values


def planned(number: int, shape: int, down: int, clusters: int, **rest) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, groups = SHAPES[shape]
    rows = 64 * groups * down + (17 if clusters > 1 else -21)
    plan = Plan(shape, down, 1, 4 + number % 2, clusters)
    return random_case(rows, 300, tokens // 2 + 3 * number, number, plan=plan, **rest)


def of_codes(values: str, group: int | None, number: int, plan: Plan) -> Case:
    """A product of codes over several units, in both dtypes."""
    cols = 1400 if plan.clusters > 1 else 700
    options = {"values": values, "group": group}
    return random_case(140, cols, 9, number, plan=plan, options=options, rounds=group is not None)


def test_every_compiled_shape_is_right(driver):
    """Alone, in clusters of each size; tiles that clusters share, own, or own two of."""
    cases = []
    for shape in NATIVE:
        for down in (1, 2):
            number = len(cases)
            cases.append(planned(number, shape, down, 1 + number % 3))
    for shape in range(len(SHAPES)):
        options = {"values": "fp8_e4m3"}
        cases.append(planned(len(cases), shape, 1, 1 + shape % 3, options=options))
    require_all(driver(DRIVER, "plain"), cases)


def test_many_tokens_take_several_tiles(driver):
    case = random_case(130, 270, 64 * 2 + 5, 4, plan=Plan(FIRST, 1, 1, 4, 2))
    require_all(driver(DRIVER, "plain"), [case, replace(case, plan=Plan(FIRST, 2, 1, 4, 1))])


def test_blocks_behind_each_other_add_up_their_sums(driver):
    """Also where the last of them has less to do, and where rows and tokens end inside a tile."""
    cases = [
        random_case(70, 513, 39, 1, plan=Plan(FIRST, 1, 2, 4, 1)),
        random_case(130, 1100, 70, 2, plan=Plan(FIRST, 1, 4, 4, 4)),
        random_case(200, 600, 9, 5, plan=Plan(FIRST, 2, 2, 5, 1)),
    ]
    require_all(driver(DRIVER, "plain"), cases)


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_are_multiplied(driver, values, group):
    """To the same bits in any schedule."""
    plans = [Plan(FIRST, 1, 1, 4, 3), Plan(FIRST, 1, 2, 4, 2)]
    cases = [of_codes(values, group, number, plan) for plan in plans for number in (1, 2)]
    require_all(driver(DRIVER, "plain"), cases)
    found = require_all(driver(DRIVER, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


def test_every_product_as_it_is_planned(driver):
    sizes = [(1, 1, 1), (33, 100, 40), (200, 513, 70)]
    cases = [random_case(*size, number, plan=Plan()) for number, size in enumerate(sizes)]
    require_all(driver(DRIVER, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    """Also sums between clusters, whichever comes last."""
    case = random_case(140, 800, 9, 1, plan=Plan(FIRST, 2, 1, 4, 3))
    for each in (case, replace(case, plan=Plan(FIRST, 1, 2, 4, 2))):
        found = require_all(driver(DRIVER, "plain"), each.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize("dense", [0, 0.2, 1])
def test_unit_vectors_give_every_weight(driver, dense):
    """Of warpgroups none, some or all of whose units are dense."""
    weight = keep_dense(torch.randn(128, 512).to(torch.bfloat16), dense, 1)
    units = torch.eye(512, dtype=torch.bfloat16)
    cases = [Case(weight, part, plan=Plan(FIRST)) for part in units.split(64)]
    assert torch.equal(torch.cat(answers(driver(DRIVER, "plain"), cases)).T, weight)


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """Of dense units; and what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 4)  # all dense
    weight, x = case.weight.clone(), case.x.clone()
    weight[5, 290], weight[17, 3], weight[39, 299] = torch.inf, -torch.inf, torch.nan
    x[1, 290], x[2, 290], x[3, 290] = torch.inf, torch.nan, 0.0
    (y,) = answers(driver(DRIVER, "plain"), [replace(case, weight=weight, x=x, plan=Plan(FIRST))])
    right = x.double() @ weight.double().T
    right = (right if case.bias is None else right + case.bias.double()).to(y.dtype)
    wild = ~right.isfinite()
    assert torch.equal(wild, ~y.isfinite())
    assert torch.equal(y[wild].nan_to_num(0), right[wild].nan_to_num(0))


FEW_SHAPES = with_few_shapes(PLAN_HEADER, [0, FIRST])


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(3, FIRST, 2, 2), random_case(17, 257, 70, 3, plan=Plan(FIRST))]
    cases.append(random_case(100, 700, 11, 1, plan=Plan(FIRST, 1, 2, 4, 1)))
    cases += [of_codes(*each, number, Plan(FIRST, 1, 1, 4, 2)) for number, each in enumerate(CODES)]
    binary = compile_driver(DRIVER, sanitizer, FEW_SHAPES)
    require_all(binary, [replace(case, seed=7) for case in cases])


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(FIRST, 1, 1, 3), "two stages at least"),
        (Plan(99), "no such shape"),
        (Plan(FIRST, 3), "1, 2, 4 or 8 blocks"),
        (Plan(SHAPES.index((64, 3))), "values of this type have no such shape"),
        (Plan(FIRST, 1, 1, 17), "2 to 16 stages"),
        (Plan(SHAPES.index((128, 2)), 1, 1, 16), "too little shared memory"),
        (Plan(FIRST, 1, 1, 4, 3), "at least one step"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    wrong = replace(case, plan=Plan(FIRST), options={"values": "fp8_e4m3", "group": 128})
    ran = run(driver(DRIVER, "plain"), [wrong])
    assert ran.returncode == 1 and "no such shape" in ran.stderr.decode()
