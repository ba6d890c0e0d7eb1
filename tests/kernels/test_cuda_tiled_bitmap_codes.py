# SPDX-License-Identifier: Apache-2.0
"""The linear kernel of tiled_bitmap by int8 codes, its own source, run on the CPU by the emulator.

What it has in common with the one of 16-bit values is tested there (test_cuda_tiled_bitmap_linear).
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from emulated_tiled_bitmap import (
    CODES,
    CODES_SHAPES,
    FULL_CODE_LINES,
    GPUS,
    INT8,
    LINEAR,
    PROMPT,
    ROUNDED,
    WARPS,
    Case,
    Plan,
    judge,
    random_codes,
    require_all,
    run,
    sanitized_driver,
    split,
)
from emulation import (
    SANITIZED,
    SEEDS,
    UNTIL_A_RACE,
    is_caught,
    run_without_each_barrier,
)

from flashsparse_plugin.formats.values.activations import quantise_tokens
from flashsparse_plugin.formats.values.types import to_codes

DENSITIES = (0.5, 1.0, 0.2, 0.0, 0.7)


def planned(number: int, shape: int, warps: tuple[int, int], blocks: int, operands: int) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, row_units, *_ = CODES_SHAPES[shape]
    if row_units * warps[0] * warps[1] * tokens > 64:
        warps = (1, 1)
    ring = (FULL_CODE_LINES, 60, 2 * FULL_CODE_LINES)[number % 3] * row_units
    plan = Plan(shape, *warps, 0, 2 + number % 2, ring, blocks)
    rows, cols = 16 * row_units * warps[0] + 11, 256 * (warps[1] + 1) - 7
    density = DENSITIES[number % 5]
    return random_codes(
        rows, cols, tokens - number % 3, number, density, plan=plan, operands=operands
    )


def planned_cases() -> list[Case]:
    """Every shape, by arrangements of warps, densities, lengths of rings and operands by turns."""
    kinds = product((CODES, ROUNDED), range(len(CODES_SHAPES)))
    return [
        planned(number, shape, WARPS[number % 4], 1 + number % 3, operands)
        for number, (operands, shape) in enumerate(kinds)
    ]


def skewed_cases() -> list[Case]:
    """One dense row in 16; units that are empty beside full ones; columns that are full."""
    case = random_codes(40, 700, 6, 2)
    row, units, columns = (torch.zeros_like(case.weight) for _ in range(3))
    row[5::16] = case.weight[5::16] + 1
    units[:16, 256:512] = units[32:, :256] = 1.5
    units[16:32, 512:] = case.weight[16:32, 512:]
    columns[:, 130:140] = columns[:, 3] = -0.75
    plans = (CODES, Plan(0, 2, 1, 0, 2, 46)), (ROUNDED, Plan(2, 1, 2, 0, 2, 100))
    return [
        case.replace(weight=to_codes(weight, INT8, None), plan=plan, operands=operands)
        for weight in (row, units, columns)
        for operands, plan in plans
    ]


def test_every_compiled_shape_is_right(driver):
    require_all(driver(LINEAR, "plain"), planned_cases())


def test_skewed_weights(driver):
    require_all(driver(LINEAR, "plain"), skewed_cases())


@pytest.mark.parametrize("architecture", GPUS)
def test_every_product_as_it_is_planned(driver, architecture):
    gpu = GPUS[architecture]
    sizes = [(1, 1), (33, 100), (100, 600), (17, 257)]
    tokens = [1, 8, 13, *([64] if gpu[1] > 128 << 10 else [32])]
    cases = [
        random_codes(*sizes[number], count, number, DENSITIES[number], gpu=gpu, operands=operands)
        for number, count in enumerate(tokens)
        for operands in (CODES, ROUNDED)
    ]
    require_all(driver(LINEAR, "plain"), cases, ARCHITECTURE=architecture)


@pytest.mark.parametrize("operands", [CODES, ROUNDED])
def test_schedules_give_the_same_bits(driver, operands):
    """Also sums between blocks, whichever comes last."""
    for case in (planned(1, 1, (2, 2), 2, operands), planned(5, 2, (1, 2), 3, operands)):
        found = require_all(driver(LINEAR, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_sums_of_rounded_activations_are_exact(driver):
    """Integers, whose sum has more bits than a float, rounded once and then scaled."""
    case = random_codes(40, 4100, 5, 3, 0.9, operands=ROUNDED, plan=Plan(0, 1, 2, 0, 2, 90, 2))
    case = case.replace(weight=case.weight.abs(), x=case.x.abs() + 99, bias=None)
    ran = run(driver(LINEAR, "plain"), [case])
    (y,) = split(ran.stdout, [case])
    codes, scales = quantise_tokens(case.x, INT8)
    row_scales = case.tensors["weight_scale"]
    sums = codes.long() @ (case.weight.float() / row_scales).long().T
    assert (sums.float().long() != sums).any()
    assert torch.equal(y, (sums.float() * scales * row_scales.T).to(y.dtype))


def test_the_least_code_is_a_number_like_others(driver):
    """-128, as byte 0, which no packer of ours writes, and 128 for a kept 0."""
    for operands in (CODES, ROUNDED):
        case = random_codes(16, 256, 3, 1, 1.0, operands=operands)
        codes = (case.weight.float() / case.tensors["weight_scale"]).long()
        lines = case.tensors["weight_packed"].clone()
        items = lines[5:].view(torch.uint8)
        items[items == 1] = 0
        items[items == 2] = 128
        codes[codes == -127], codes[codes == -126] = -128, 0
        odd = case.replace()
        odd.__dict__["tensors"] = {**case.tensors, "weight_packed": lines}
        (y,) = split(run(driver(LINEAR, "plain"), [odd]).stdout, [odd])
        weight = (codes * case.tensors["weight_scale"]).to(case.weight.dtype)
        judge(case.replace(weight=weight), y)


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """What lies beyond the edges of a weight makes no NaN; rounded, a token is lost as a whole."""
    case = random_codes(40, 300, 6, 2, operands=CODES)
    x = case.x.clone()
    x[1, 298], x[2, 298], x[3, 298] = torch.inf, torch.nan, 0
    wanted = x.double() @ case.weight.double().T
    for operands in (CODES, ROUNDED):
        own = case.replace(x=x, bias=None, operands=operands)
        (y,) = split(run(driver(LINEAR, "plain"), [own]).stdout, [own])
        finite = wanted.isfinite()
        if operands == ROUNDED:
            assert not y[1:3].isfinite().any() and y[[0, 3, 4, 5]].isfinite().all()
        else:
            assert torch.equal(y.isnan(), wanted.isnan())
            assert torch.equal(y.isfinite(), finite)
            assert torch.allclose(y.double()[finite], wanted[finite], rtol=1e-2, atol=1e-2)


def prompts() -> list[Case]:
    """More tokens than a thread scales; edges that fit nothing; empty and full units."""
    sizes = ((1, 1, 1), (3, 40, 9), (33, 300, 17), (70, 700, 20), (516, 256, 3))
    random = [
        random_codes(*size, number, DENSITIES[number], operands=ROUNDED)
        for number, size in enumerate(sizes)
    ]
    return random + [case for case in skewed_cases() if case.operands == ROUNDED]


def test_a_prompt_has_the_bits_of_its_tokens(driver):
    """Whether the sparse kernel sums, or a library does between our kernels."""
    cases = [case.replace(seed=seed) for case in prompts() for seed in SEEDS]
    x = cases[9].x.clone()
    x[0, 7], x[2, 5] = torch.nan, -torch.inf
    cases.append(cases[9].replace(x=x))
    expected, found = (run(driver(name, "plain"), cases) for name in (LINEAR, PROMPT))
    assert expected.returncode == found.returncode == 0, found.stderr.decode()
    assert found.stdout == expected.stdout


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing_in_a_prompt(driver, sanitizer):
    require_all(driver(PROMPT, sanitizer), [case.replace(seed=7) for case in prompts()[2:]])


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [
        planned(n, shape, (2, 2), 3, (CODES, ROUNDED)[n % 2])
        for n, shape in enumerate((0, 1, 3, 7))
    ]
    cases += [random_codes(33, 1000, 9, 3, operands=ROUNDED), *skewed_cases()[:2]]
    binary, _ = sanitized_driver(sanitizer)
    cases = [case.replace(seed=7) for case in cases]
    require_all(binary, cases)
    require_all(binary, cases[::3], ARCHITECTURE="80")  # which copies by lanes


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Of those that are not in the kernel of 16-bit values: a race is found, or a wrong result."""
    binary, places = sanitized_driver("thread")
    places = {n: place for n, place in enumerate(places) if "mma_units" in place}
    case = random_codes(16, 600, 3, 1, operands=ROUNDED, seed=7)
    for number, place in places.items():
        ran = run(binary, [case], WITHOUT=str(number), TSAN_OPTIONS=UNTIL_A_RACE)
        assert is_caught(ran, lambda written: judge(case, split(written, [case])[0])), place
    assert len(places) == 2


@pytest.mark.slow
def test_no_barrier_of_a_prompt_can_be_spared():
    case = random_codes(16, 600, 3, 1, operands=ROUNDED, seed=7)
    mutants = run_without_each_barrier(
        PROMPT,
        lambda binary, **without: run(binary, [case], TSAN_OPTIONS=UNTIL_A_RACE, **without),
    )
    assert len(mutants) == 3
    for place, ran in mutants.items():
        assert is_caught(ran, lambda written: judge(case, split(written, [case])[0])), place


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_codes(40, 300, 6, 2, operands=CODES)
    for plan, told in (
        (Plan(0, 1, 1, 1), "where units are spread"),
        (Plan(0, 1, 1, 0, ring_lines=FULL_CODE_LINES - 1), "would not fit"),
    ):
        ran = run(driver(LINEAR, "plain"), [case.replace(plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
