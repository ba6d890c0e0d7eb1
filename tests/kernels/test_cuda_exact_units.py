# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of exact_units, their own source, run on the CPU by the emulator."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_exact_units import (
    PLAN_HEADER,
    SCHEME,
    SCHEME_24,
    SHAPES,
    Case,
    Plan,
    answers,
    numbers,
    random_case,
    random_weight,
    raw,
    require_all,
    two_of_four,
)
from emulated_linear import require_exact
from emulated_products import run, spared
from emulation import (
    SANITIZED,
    SEEDS,
    compile_driver,
    covering,
    with_few_shapes,
    with_switched_barriers,
)
from kernel_weights import every_bit_pattern

from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.unstructured.exact_units import ExactUnits
from flashsparse_plugin.packed import PackedWeight

LINEAR, UNPACK = "exact_units/linear_driver", "exact_units/unpack_driver"
WIDEN = "exact_units/widen_24_driver"
GPUS = ((4, 227 << 10), (3, 99 << 10))  # multiprocessors, bytes of shared memory
WARPS = ((1, 1), (2, 1), (1, 2), (2, 2))


def planned(number: int, shape: int, warps: tuple[int, int], blocks: int) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, row_units, _ = SHAPES[shape]
    stages = 3 if tokens == 8 else 2
    of_x = 2 * warps[1] * tokens * 512
    if of_x + warps[0] * warps[1] * row_units * stages * 6400 > 200 << 10:
        warps = (1, 1)
    plan = Plan(shape, *warps, stages, 2, blocks)
    rows = 16 * row_units * warps[0] * 2 - 5
    return random_case(rows, 256 * 5 - 7, tokens - number % 3, number, plan=plan)


def planned_cases() -> list[Case]:
    """Every shape by every arrangement of warps; blocks that share a set, own one, or own two."""
    cases = []
    for shape in range(len(SHAPES)):
        for warps in WARPS:
            number = len(cases)
            cases.append(planned(number, shape, warps, 1 + number % 3))
    of_dense_units = [case for case in cases if SHAPES[case.plan.shape][1] <= 2]
    return of_dense_units + [case.as_24() for case in cases]


def test_every_compiled_shape_is_right(driver):
    cases = planned_cases()
    assert {case.packed.tensors["slots"].shape[2] for case in cases} == {4, 8, 16}
    assert sum(int(case.packed.tensors["listed_offsets"][-1]) > 0 for case in cases) > 9
    require_all(driver(LINEAR, "plain"), cases)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_every_product_as_it_is_planned(driver, gpu):
    tokens = [1, 7, 8, 9, 16, 17, 32, *([33, 64] if gpu[1] > 128 << 10 else [])]
    sizes = [(1, 1), (33, 100), (100, 1300), (17, 257), (300, 300), (15, 512)]
    cases = [
        random_case(*sizes[number % len(sizes)], count, number, gpu=gpu)
        for number, count in enumerate(tokens * 2)
    ]
    require_all(driver(LINEAR, "plain"), [*cases, *(case.as_24() for case in cases)])


def test_schedules_give_the_same_bits(driver):
    """Also sums between blocks, whichever comes last."""
    for case in (planned(1, 1, (2, 2), 2), planned(2, 2, (1, 2), 5).as_24()):
        found = require_all(driver(LINEAR, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_plans_give_the_same_but_for_rounding(driver):
    case = random_case(100, 1300, 5, 1)
    for blocks, warps in ((1, (1, 1)), (4, (2, 2)), (12, (1, 3))):
        plan = Plan(0, *warps, 2, 2, blocks)
        require_all(driver(LINEAR, "plain"), [replace(case, plan=plan)])


def test_unit_vectors_give_every_finite_bit_pattern(driver):
    """Whatever its exponent has become: a code, a slot or an entry of the list."""
    bits = torch.arange(1 << 16).view(256, 256)
    for order in (bits, bits.T.contiguous()):  # rows of one exponent or two; of all
        weight = (order - (1 << 15)).to(torch.int16).view(torch.bfloat16)
        weight = weight.where(weight.isfinite(), 0.0)
        units = torch.eye(256, dtype=torch.bfloat16)
        cases = [Case(weight, part, plan=Plan(5, 2, 1, 2, 2, 3)) for part in units.split(32)]
        y = torch.cat(answers(driver(LINEAR, "plain"), cases)).T
        assert torch.equal(y, weight)


def test_unit_vectors_give_every_finite_bit_pattern_of_24(driver):
    """Two patterns in every four columns, at each pair of places."""
    bits = torch.arange(1 << 16).view(512, 128)
    weight = torch.zeros(512, 64, 4, dtype=torch.bfloat16)
    pairs = torch.combinations(torch.arange(4))[torch.arange(512 * 64).view(512, 64) % 6]
    patterns = (bits - (1 << 15)).to(torch.int16).view(torch.bfloat16).view(512, 64, 2)
    weight.scatter_(2, pairs, patterns.where(patterns.isfinite(), 0.0))
    weight = weight.flatten(1)
    units = torch.eye(256, dtype=torch.bfloat16)
    case = Case(weight, units[:32], plan=Plan(5, 2, 1, 2, 2, 3), scheme=SCHEME_24)
    cases = [replace(case, x=part) for part in units.split(32)]
    assert torch.equal(torch.cat(answers(driver(LINEAR, "plain"), cases)).T, weight)


def test_exceptions_of_one_unit_find_their_way(driver):
    """More than any number of slots, in one unit, a row or a column of it."""
    weight = random_weight(40, 700, 3, share=0)
    weight[16:32, 256:512] *= 2.0**-40
    weight[17] *= 2.0**-20
    weight[3, :300] = 2.0**-60
    weight[:, 699] = 2.0**100
    x = torch.randn(9, 700, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    for plan in (Plan(2, 1, 2, 2, 2, 2), Plan(3, 2, 1, 2, 2, 1)):
        case = Case(weight, x, plan=plan)
        assert int(case.packed.tensors["listed_offsets"][-1]) > 200
        require_all(driver(LINEAR, "plain"), [case, case.as_24()])


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """And what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 2)
    weight, x = random_weight(40, 300, 2, share=0), case.x.clone()
    weight[5, 290], weight[17, 3], weight[39, 299] = torch.inf, -torch.inf, torch.nan
    x[1, 290], x[2, 290], x[3, 290] = torch.inf, torch.nan, 0.0
    weight[:, 290] = weight[:, 290].where(weight[:, 290] != 0, 0.5)
    for plan in (Plan(0, 1, 1, 2, 2, 1), Plan(0, 2, 2, 2, 2, 1), Plan(1, 1, 2, 2, 2, 1)):
        (y,) = answers(driver(LINEAR, "plain"), [replace(case, weight=weight, x=x, plan=plan)])
        right = x.double() @ weight.double().T
        right = (right if case.bias is None else right + case.bias.double()).to(y.dtype)
        wild = ~right.isfinite()
        # An infinity of x times a weight that is listed elsewhere is NaN here.
        listed = torch.zeros_like(wild)
        listed[1, [5]] = True
        assert torch.equal(wild, ~y.isfinite())
        assert torch.equal(y[wild & ~listed].nan_to_num(0), right[wild & ~listed].nan_to_num(0))


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    parts = [f"cuda/exact_units/{part}.cuh" for part in ("linear", "weight_ring")]
    parts += [f"cuda/mma_units/{part}.cuh" for part in ("sums", "partial_sums", "x_ring")]
    pattern = r"(?:__syncthreads|__syncwarp|sync_threads_of|mbarrier_wait)\([^;]*\);"
    headers, places = with_switched_barriers(parts, pattern)
    return compile_driver(LINEAR, "thread", headers | FEW_SHAPES), places


FEW_SHAPES = with_few_shapes(PLAN_HEADER, covering(SHAPES))


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(n, shape, (2, 2), 3) for n, shape in enumerate((0, 3, 8))]
    cases += [random_case(33, 1300, 9, 3), random_case(17, 257, 64, 4)]
    cases += [case.as_24() for case in cases]
    binary = (
        switched_driver()[0]
        if sanitizer == "thread"
        else compile_driver(LINEAR, sanitizer, FEW_SHAPES)
    )
    require_all(binary, [replace(case, seed=7) for case in cases])


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result."""
    binary, places = switched_driver()
    cases = [planned(1, 1, (2, 2), 3), planned(2, 0, (1, 2), 5)]  # with sums between blocks
    cases.append(random_case(60, 1790, 8, 3, plan=Plan(0, 2, 2, 2, 2, 1)))  # that reuses all stages
    # First one whose blocks run one after the other: it catches most, with the fewest threads.
    cases = [cases[0], *(replace(case, seed=7) for case in cases), cases[1].as_24()]
    assert spared(binary, places, cases, require_exact) == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(99), "no such shape"),
        (Plan(0, 4, 4), "fewer warps"),
        (Plan(0, 1, 1, 0), "at least one stage"),
        (Plan(0, 15, 1, 20), "too little shared memory"),
        (Plan(0, blocks=7), "at least one step"),
        (Plan(SHAPES.index((32, 4, 7))), "units of this kind"),
    ):
        ran = run(driver(LINEAR, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    ran = run(driver(LINEAR, "plain"), [replace(random_case(40, 300, 9, 2), plan=Plan(0))])
    assert ran.returncode == 1 and "other numbers of tokens" in ran.stderr.decode()


def converted(binary, cases: list[tuple[PackedWeight, int]]) -> torch.Tensor:
    """All that a driver answers, in 16 bits."""
    fed = []
    for packed, seed in cases:
        held = packed.tensors
        header = [*packed.shape, seed, *numbers(packed)]
        fed += [np.array(header, dtype=np.int64).tobytes(), *map(raw, held.values())]
    ran = subprocess.run([str(binary)], input=b"".join(fed), capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    return torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())


def unpack(binary, cases: list[tuple[PackedWeight, int]]) -> list[torch.Tensor]:
    bits = converted(binary, cases)
    parts = bits.split([packed.shape[0] * packed.shape[1] for packed, _ in cases])
    return [part.view(packed.shape) for part, (packed, _) in zip(parts, cases, strict=True)]


UNPACKED = [(1, 1), (16, 256), (33, 100), (35, 513), (17, 1030), (20, 272)]


@pytest.mark.parametrize("sanitizer", ["plain", *SANITIZED])
def test_unpacking_gives_every_bit_back(driver, sanitizer):
    weights = []
    for seed, shape in enumerate(UNPACKED):
        weights.append(every_bit_pattern(shape, torch.bfloat16, seed))
        weights.append(random_weight(*shape, seed))
    kept = [two_of_four(each.nan_to_num(0.0)) for each in weights]
    weights += [each.where(each != 0, 0.0) for each in kept]  # 2:4 has no -0
    schemes = [SCHEME] * (len(weights) // 2) + [SCHEME_24] * (len(weights) // 2)
    cases = [
        (ExactUnits().pack(each, scheme), SEEDS[number % 3])
        for number, (each, scheme) in enumerate(zip(weights, schemes, strict=True))
    ]
    found = unpack(driver(UNPACK, sanitizer), cases)
    assert all(
        torch.equal(y, each.view(torch.int16)) for y, each in zip(found, weights, strict=True)
    )


@pytest.mark.parametrize("sanitizer", ["plain", *SANITIZED])
def test_widening_gives_the_units_of_sparse_24(driver, sanitizer):
    """Word for word, though exceptions are no kept columns here, and are there."""
    weights = []
    for seed, shape in enumerate(UNPACKED):
        kept = two_of_four(every_bit_pattern(shape, torch.bfloat16, seed).nan_to_num(0.0))
        weights.append(kept.where(kept != 0, 0.0))
        wild = two_of_four(random_weight(*shape, seed, share=0.2).nan_to_num(0.0))
        # Alone in its four columns, at each of them: another one is kept beside it.
        columns = torch.arange(shape[1])[None]
        at = torch.arange(shape[0])[:, None] // 2 % 4 == columns % 4
        alone = torch.where(columns // 4 % 8 == 0, 2.0**-120, 1.0) * at
        weights += [wild, alone.bfloat16()]
    packed = [ExactUnits().pack(each, SCHEME_24) for each in weights]
    listed = [int(each.tensors["listed_offsets"][-1]) for each in packed]
    assert (
        sum(map(bool, listed)) > 6 and sum(bool(each.tensors["slots"].any()) for each in packed) > 6
    )
    found = converted(driver(WIDEN, sanitizer), [(x, SEEDS[i % 3]) for i, x in enumerate(packed)])
    form = Sparse24()
    wanted = [
        form.pack(each, form.scheme(torch.bfloat16, {"n": 2, "m": 4})).tensors["units"]
        for each in weights
    ]
    assert torch.equal(found, torch.cat([each.flatten().view(torch.int16) for each in wanted]))


def test_any_words_of_units_and_slots_stay_in_bounds(driver):
    """Only what the list and its offsets say is an address."""
    generator = torch.Generator().manual_seed(3)

    def any_words(like):
        return torch.randint(-(2**31), 2**31, like.shape, generator=generator).to(torch.int32)

    for case in (random_case(35, 300, 8, 1), random_case(35, 300, 8, 1).as_24()):
        tensors = dict(case.packed.tensors)
        tensors |= {name: any_words(tensors[name]) for name in ("units", "slots")}
        if case.scheme == SCHEME_24:  # positions that do not rise are refused before
            tensors["units"][..., -128:] = case.packed.tensors["units"][..., -128:]
        damaged = PackedWeight(case.scheme, case.packed.shape, tensors)
        unpack(driver(UNPACK, "plain"), [(damaged, 0)])
        if case.scheme == SCHEME_24:
            converted(driver(WIDEN, "plain"), [(damaged, 0)])
        object.__setattr__(case, "packed", damaged)
        answers(driver(LINEAR, "plain"), [case])
