# SPDX-License-Identifier: Apache-2.0
"""The wgmma kernel of exact_units, its own source, run on the CPU by the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from emulated_exact_units import Case, answers, random_case, random_weight, require_all
from emulated_linear import require_exact
from emulated_products import run, spared
from emulation import (
    KERNELS,
    SANITIZED,
    compile_driver,
    covering,
    with_few_shapes,
    with_switched_barriers,
)

DRIVER, HEADER = "exact_units/wgmma_driver", "cuda/exact_units/wgmma_plan.h"
SHAPES = [  # tokens of a tile, warpgroups
    tuple(map(int, found))
    for found in re.findall(r"^  X\((\d+), (\d+)\)", (KERNELS / HEADER).read_text(), re.M)
]
# Dense units are not compiled in all of them.
DENSE = [n for n, (tokens, groups) in enumerate(SHAPES) if groups == (3 if tokens <= 64 else 2)]
FEW_SHAPES = with_few_shapes(HEADER, covering(SHAPES))


class Plan(NamedTuple):
    """The numbers of WgmmaPlan; a shape of -1 lets the host plan."""

    shape: int = -1
    down: int = 1
    depth: int = 1
    stages: int = 4
    clusters: int = 1


def planned(number: int, shape: int, down: int, clusters: int) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, groups = SHAPES[shape]
    rows = 64 * groups * down + (17 if clusters > 1 else -21)
    plan = Plan(shape, down, 1, (2 if tokens > 128 else 4) + number % 2, clusters)
    return random_case(rows, 600, tokens // 2 + 3 * number, number, plan=plan)


def test_every_compiled_shape_is_right(driver):
    """Alone, and in clusters; tiles that clusters share, own, or own two of."""
    cases = [planned(n, shape, 1, 1 + n % 3) for n, shape in enumerate(range(len(SHAPES)))]
    cases.append(planned(1, 0, 2, 1))
    assert any(int(case.packed.tensors["listed_offsets"][-1]) for case in cases)
    dense = [case for case in cases if case.plan.shape in DENSE]
    require_all(driver(DRIVER, "plain"), [*dense, *(case.as_24() for case in cases)])


def test_many_tokens_take_several_tiles(driver):
    case = random_case(130, 270, 32 * 2 + 5, 2, plan=Plan(0, 1, 1, 4, 2))
    cases = [case, replace(case, plan=Plan(0, 2, 1, 4, 1))]
    require_all(driver(DRIVER, "plain"), [*cases, *(case.as_24() for case in cases)])


def test_blocks_behind_each_other_add_up_their_sums(driver):
    """Also where the last of them has less to do, and where rows and tokens end inside a tile."""
    cases = [
        random_case(70, 513, 27, 2, plan=Plan(0, 1, 2, 5, 1)),
        random_case(100, 1100, 30, 3, plan=Plan(0, 1, 4, 4, 1)),
        random_case(200, 600, 9, 4, plan=Plan(0, 2, 2, 4, 1)),
    ]
    require_all(driver(DRIVER, "plain"), [*cases, *(case.as_24() for case in cases)])


def test_products_as_they_are_planned(driver):
    sizes = [(1, 1), (33, 100), (300, 700), (17, 257)]
    cases = [
        random_case(*sizes[n % 4], tokens, n, plan=Plan(), gpu=(4, 227 << 10))
        for n, tokens in enumerate((17, 32, 33, 64, 65, 130))
    ]
    require_all(driver(DRIVER, "plain"), [*cases, *(case.as_24() for case in cases)])


def test_schedules_give_the_same_bits(driver):
    """Also sums between clusters, whichever comes last."""
    for case in (planned(2, 2, 1, 3), planned(2, 2, 1, 3).as_24()):
        found = require_all(driver(DRIVER, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_unit_vectors_give_every_finite_bit_pattern(driver):
    """Whatever its exponent has become: a code, a slot or an entry of the list."""
    bits = torch.arange(1 << 16).view(256, 256).T.contiguous()
    weight = (bits - (1 << 15)).to(torch.int16).view(torch.bfloat16)
    weight = weight.where(weight.isfinite(), 0.0)
    units = torch.eye(256, dtype=torch.bfloat16)
    cases = [Case(weight, part, plan=Plan(4, 1, 1, 4, 2)) for part in units.split(128)]
    assert torch.equal(torch.cat(answers(driver(DRIVER, "plain"), cases)).T, weight)


def test_an_infinite_x_meets_an_exception_as_it_does_in_a_dense_product(driver):
    """Exceptions stand among the other weights, so that no zero is in their place."""
    case = random_case(40, 300, 20, 3)
    weight = random_weight(40, 300, 2, share=0)
    weight[5, 290], weight[17, 3] = 2.0**40, 2.0**-40
    x = case.x.clone()
    x[1, 290], x[2, 3] = torch.inf, -torch.inf
    case = replace(case, weight=weight, x=x, plan=Plan(0, 1, 1, 4, 1), bias=None)
    assert int((case.packed.tensors["slots"] != 0).sum()) == 2
    (y,) = answers(driver(DRIVER, "plain"), [case])
    right = (x.double() @ weight.double().T).to(y.dtype)
    wild = ~right.isfinite()
    assert wild[1, 5] and wild[2, 17] and torch.equal(wild, ~y.isfinite())
    assert torch.equal(y[wild].nan_to_num(7), right[wild].nan_to_num(7))


def test_infinity_and_nan_of_a_weight_go_where_the_dense_product_takes_them(driver):
    case = random_case(40, 300, 20, 3)
    weight = random_weight(40, 300, 2, share=0)
    weight[5, 290], weight[17, 3], weight[39, 299] = torch.inf, -torch.inf, torch.nan
    case = replace(case, weight=weight, plan=Plan(0, 1, 1, 4, 1), bias=None)
    (y,) = answers(driver(DRIVER, "plain"), [case])
    right = (case.x.double() @ weight.double().T).to(y.dtype)
    wild = ~right.isfinite()
    assert wild.any() and torch.equal(wild, ~y.isfinite())
    assert torch.equal(y[wild].nan_to_num(0), right[wild].nan_to_num(0))


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    parts = [f"cuda/exact_units/{part}.cuh" for part in ("wgmma", "wgmma_weights")]
    pattern = r"(?:__syncwarp|mbarrier_wait|wgmma_wait|cluster_barrier_relaxed)\([^;]*\);"
    headers, places = with_switched_barriers(parts, pattern)
    return compile_driver(DRIVER, "thread", headers | FEW_SHAPES), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(1, 0, 1, 2), random_case(60, 513, 20, 2, plan=Plan(0, 1, 2, 5, 1))]
    cases += [case.as_24() for case in cases]
    binary = (
        switched_driver()[0]
        if sanitizer == "thread"
        else compile_driver(DRIVER, sanitizer, FEW_SHAPES)
    )
    require_all(binary, [replace(case, seed=7) for case in cases])


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result."""
    binary, places = switched_driver()
    wide = random_case(150, 1300, 20, 2, plan=Plan(0, 1, 1, 4, 1))  # that reuses all stages
    cases = [planned(1, 0, 1, 2), wide, replace(wide, seed=7), wide.as_24()]
    # Clusters, whose blocks share x and must be there, and stay, for each other.
    cases.append(random_case(300, 600, 20, 2, plan=Plan(0, 2, 1, 4, 2)))
    assert spared(binary, places, cases, require_exact) == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(99), "no such shape"),
        (Plan(0, 3), "1, 2, 4 or 8 blocks"),
        (Plan(0, 8), "share the tokens"),
        (Plan(0, stages=1), "2 to 16 stages"),
        (Plan(0, stages=3), "two stages at least, of two panels"),
        (Plan(1), "dense units have no such shape"),
        (Plan(6, stages=6), "too little shared memory"),
        (Plan(0, 1, 4), "fewer units of columns"),
        (Plan(0, clusters=9), "at least one step"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
