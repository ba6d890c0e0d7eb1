# SPDX-License-Identifier: Apache-2.0
"""The wgmma kernel of tiled_bitmap, its own source, run on the CPU by the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from emulated_bitmap_wgmma import SHAPES, Case, Plan, random_case, random_codes
from emulated_linear import require_exact
from emulated_products import run, spared, split
from emulated_tiled_bitmap import CODES, INT8, ROUNDED, require_all
from emulation import (
    EMULATOR_EXIT_CODE,
    KERNELS,
    SANITIZED,
    compile_cuda,
    compile_driver,
    find_nvcc,
    with_few_shapes,
    with_switched_barriers,
)

from flashsparse_plugin.formats.values.activations import quantise_tokens
from flashsparse_plugin.formats.values.types import to_codes

DRIVER = "tiled_bitmap/wgmma_driver"
SMALL = SHAPES.index((64, 2))  # its panels are one batch each,
WIDE = SHAPES.index((128, 2))  # and those of this one four
PARTS = [f"cuda/tiled_bitmap/wgmma{part}.cuh" for part in ("", "_units")]


def planned(
    number: int, shape: int, down: int, clusters: int, stages: int = 3, case=random_case
) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, groups = SHAPES[shape]
    rows = 64 * groups * down + (17 if clusters > 1 else -21)
    plan = Plan(shape, down, 1, stages, clusters)
    return case(rows, 300, tokens // 2 + 3 * number, number, plan=plan)


def of_codes(operands: int):
    return partial(random_codes, operands=operands)


@pytest.mark.parametrize("case", [random_case, of_codes(CODES), of_codes(ROUNDED)])
def test_every_compiled_shape_is_right(driver, case):
    """Alone, in clusters; tiles that clusters share, own, or own two of."""
    cases = [
        planned(number, shape, 1 + number % 2 * (groups == 2), 1 + number % 3, 2 + number % 2, case)
        for number, (shape, (_, groups)) in enumerate(enumerate(SHAPES))
    ]
    # Sums of clusters that are added up in portions of 5 to 7 eights of tokens.
    joined = [n for n, (tokens, _) in enumerate(SHAPES) if tokens % 64]
    cases += [planned(n, n, 1, 3, case=case) for n in joined]
    require_all(driver(DRIVER, "plain"), [*cases, planned(1, SMALL, 4, 1, case=case)])


@pytest.mark.parametrize("tokens", [65, 128, 200, 257])
def test_many_tokens_take_several_tiles(driver, tokens):
    shape = SHAPES.index((128, 2)) if tokens > 128 else SMALL
    case = random_case(140, 270, tokens, tokens, plan=Plan(shape, 1 + tokens % 2, 1, 2, 2))
    require_all(driver(DRIVER, "plain"), [case])


def test_every_density_is_right(driver):
    """Rings with room for one full unit and for four empty ones; rows of nothing or of everything,
    one full row of 16, units of nothing beside full ones."""
    cases = []
    for number, density in enumerate((0, 0.02, 0.5, 1)):
        cases.append(random_case(130, 1100, 9, number, density, plan=Plan(SMALL, 1, 1, 2, 2)))
    skewed = random_case(130, 1100, 9, 4, 0.1, plan=Plan(SMALL, 1, 1, 2, 1, 160))
    weight = skewed.weight.clone()
    weight[5::16] = 3
    weight[32:48, 256:512] = 0
    weight[64:80, 256:768] = -2
    weight[:, 300:303] = 1
    cases += [replace(skewed, weight=weight), replace(skewed, weight=weight, plan=cases[0].plan)]
    require_all(driver(DRIVER, "plain"), cases)


def test_every_density_of_codes_is_right(driver):
    """The same of int8 values, four of which are in a word: rings of several units, and columns
    that are full, whose last word is at the end of the unit."""
    cases = [
        random_codes(130, 1100, 9, number, density, plan=plan, operands=operands)
        for number, (density, ring) in enumerate([(0, 72), (0.02, 160), (0.5, 72), (1, 80)])
        for plan in [Plan(SMALL, 1, 1, 2, 2, ring)]
        for operands in (CODES, ROUNDED)
    ]
    skewed = random_codes(130, 1100, 9, 4, 0.1, plan=Plan(SMALL, 1, 1, 2, 1, 160))
    weight = torch.zeros_like(skewed.weight)
    weight[5::16] = skewed.weight[5::16]
    weight[32:48, 256:512] = 1.5
    weight[:, 300:303] = -0.75
    codes = to_codes(weight, INT8, None)
    for operands, plan in product((CODES, ROUNDED), (skewed.plan, cases[0].plan)):
        cases.append(replace(skewed, weight=codes, plan=plan, operands=operands))
    require_all(driver(DRIVER, "plain"), cases)


def test_sums_of_rounded_activations_are_exact(driver):
    """Integers, whose sum has more bits than a float, rounded once and then scaled."""
    case = random_codes(40, 4100, 5, 3, 0.9, operands=ROUNDED, plan=Plan(SMALL, 1, 1, 2, 2))
    case = replace(case, weight=case.weight.abs(), x=case.x.abs() + 99, bias=None)
    (y,) = split(run(driver(DRIVER, "plain"), [case]).stdout, [case])
    codes, scales = quantise_tokens(case.x, INT8)
    row_scales = case.weight.float().amax(1) / 127
    sums = codes.long() @ (case.weight.float() / row_scales[:, None]).long().T
    assert (sums.float().long() != sums).any()
    assert torch.equal(y, (sums.float() * scales * row_scales).to(y.dtype))


def test_blocks_behind_each_other_add_up_their_sums(driver):
    """Also where the last of them has less to do, and where rows and tokens end inside a tile."""
    cases = [
        random_case(70, 513, 39, 1, plan=Plan(SMALL, 1, 2, 2, 1)),
        random_case(130, 1100, 70, 2, plan=Plan(SMALL, 1, 4, 2, 4)),
        random_case(200, 600, 9, 4, plan=Plan(SMALL, 2, 2, 3, 1)),
        random_case(60, 520, 97, 5, plan=Plan(SHAPES.index((144, 3)), 1, 2, 2, 1)),
    ]
    require_all(driver(DRIVER, "plain"), cases)


def test_every_product_as_it_is_planned(driver):
    sizes = [(1, 1, 1), (33, 100, 40), (200, 513, 70)]
    cases = [case(*size, n) for case in (random_case, random_codes) for n, size in enumerate(sizes)]
    require_all(driver(DRIVER, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    """Also sums between clusters, whichever comes last."""
    case = random_case(140, 800, 9, 1, plan=Plan(SMALL, 2, 1, 2, 3))
    codes = [random_codes(140, 800, 9, 1, plan=case.plan, operands=n) for n in (CODES, ROUNDED)]
    for each in (case, replace(case, plan=Plan(SMALL, 1, 2, 2, 2)), *codes):
        found = require_all(driver(DRIVER, "plain"), each.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """And what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 2, plan=Plan(SMALL, 1, 1, 2, 1))
    weight, x = case.weight.clone(), case.x.clone()
    weight[7, 299] = torch.inf
    x[1, 299], x[2, 299], x[3, 299] = torch.inf, torch.nan, 0
    (y,) = split(run(driver(DRIVER, "plain"), [replace(case, weight=weight, x=x)]).stdout, [case])
    assert torch.isinf(y[[0, 4, 5], 7]).all() and torch.isnan(y[[2, 3], 7]).all()
    assert not torch.isfinite(y[1:3]).any()
    others = torch.arange(40) != 7
    assert torch.isfinite(y[[0, 3, 4, 5]][:, others]).all()


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(99), "no such shape"),
        (Plan(0, 3), "1, 2, 4 or 8 blocks"),
        (Plan(SHAPES.index((96, 2)), 8), "the tokens of a tile in eights"),
        (Plan(SHAPES.index((144, 3)), 1, 4), "the tokens of a tile in eights"),
        (Plan(0, 1, 1, 17), "2 to 16 stages"),
        (Plan(0, 1, 1, 2, 1, 71), "72 to 288 lines"),
        (Plan(0, 1, 1, 2, 1, 280), "too little shared memory"),
        (Plan(0, 1, 1, 2, 3), "at least one step"),
        (Plan(0, 1, 4), "fewer units of columns"),
        (Plan(0, 1, 2, 2, 2), "as many clusters as tiles"),
    ):
        ran = run(driver(DRIVER, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()


def sanitized_cases() -> list[Case]:
    """Tiles that clusters share, rings whose lines are used again, blocks behind each other."""
    case = random_case(140, 1100, 9, 1, plan=Plan(SMALL, 2, 1, 2, 3), seed=1)
    return [
        case,
        replace(case, plan=Plan(SMALL, 1, 1, 2, 3, 100), seed=7),
        replace(case, plan=Plan(SMALL, 1, 2, 2, 2)),
        random_codes(100, 800, 9, 1, plan=Plan(SMALL, 1, 1, 2, 3, 80), seed=7),
        random_codes(100, 800, 9, 2, plan=Plan(SMALL, 2, 1, 2, 3, 80), seed=7),
    ]


# Both numbers of warpgroups; the others are compiled for right results alone.
FEW = with_few_shapes("cuda/tiled_bitmap/wgmma_plan.h", sorted({0, SMALL, WIDE}))


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    waits = "__syncwarp|cluster_barrier_relaxed"
    waits += "|mbarrier_(?:wait|arrive|release)[a-z_]*|wgmma_[bcw][a-z_]*"
    barrier = rf"(?:detail::)?(?:{waits})(?:<\d>)?\([^;]*\);"
    headers, places = with_switched_barriers(PARTS, barrier)
    return compile_driver(DRIVER, "thread", headers | FEW), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    thread = sanitizer == "thread"
    binary = switched_driver()[0] if thread else compile_driver(DRIVER, sanitizer, FEW)
    cases = [*sanitized_cases(), random_case(17, 257, 70, 4)]
    cases.append(random_case(17, 257, 70, 4, plan=Plan(WIDE, 1, 1, 2, 1)))
    require_all(binary, [replace(case, seed=7) for case in cases])


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    binary, places = switched_driver()
    # Before them one of a single block: it catches most, with the fewest threads.
    cases = sanitized_cases()
    cases.insert(0, replace(cases[0], plan=Plan(SMALL, 1, 1, 2, 1)))
    cases.append(random_case(70, 600, 9, 2, plan=Plan(WIDE, 1, 1, 2, 1), seed=7))
    assert spared(binary, places, cases, require_exact) == []


@pytest.mark.slow
def test_registers_of_a_product_that_are_overwritten_are_caught():
    """A is the tensor core's until the product is waited for: the next one is made beside it."""
    header = "cuda/tiled_bitmap/wgmma.cuh"
    text = (KERNELS / header).read_text()
    early = text.replace("a_[panel % 2][part]", "a_[(panel + 1) % 2][part]")
    assert early != text
    binary = compile_driver(DRIVER, "plain", {header: early} | FEW)
    for shape in (SMALL, WIDE):
        ran = run(binary, [random_case(64, 600, 9, 1, plan=Plan(shape, 1, 1, 2, 1))])
        assert ran.returncode == EMULATOR_EXIT_CODE
        assert "registers of a wgmma" in ran.stderr.decode()


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("tokens", "groups", "operands"), [(256, 2, "Native"), (144, 3, "Codes"), (256, 2, "Rounded")]
)
def test_products_stay_asynchronous(tmp_path, tokens, groups, operands):
    """Of the shapes with the most sums in the registers that 2 and 3 warpgroups leave to a thread.

    ptxas says so if it makes a warpgroup wait for each product, and warns where it spills."""
    source = tmp_path / "one.cu"
    source.write_text(
        '#include "cuda/tiled_bitmap/wgmma.cuh"\n'
        "namespace flashsparse::tiled_bitmap {\n"
        f"template __global__ void wgmma_kernel<BFloat16, WgmmaShape<{tokens}, {groups}>, "
        f"Operands::k{operands}>(\n"
        "    WgmmaArguments, const __grid_constant__ TensorMap);\n"
        "}\n"
    )
    said = compile_cuda(source, "sm_90a", tmp_path)[1]
    assert "serialized" not in said and "injected" not in said
