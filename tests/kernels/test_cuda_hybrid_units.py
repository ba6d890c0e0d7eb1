# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of hybrid_units, their own source, run on the CPU by the emulator."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_hybrid_units import (
    FORM,
    PLAN_HEADER,
    SHAPES,
    Case,
    Plan,
    answers,
    encoded,
    judge,
    random_case,
    require_all,
)
from emulated_products import run, spared
from emulated_sparse_24 import CODES
from emulation import (
    SANITIZED,
    SEEDS,
    compile_driver,
    with_few_shapes,
    with_switched_barriers,
)
from kernel_weights import bits_without_negative_zero, every_bit_pattern

from flashsparse_plugin.formats.pattern.hybrid_24.layout import keep_dense
from flashsparse_plugin.packed import PackedWeight

LINEAR, UNPACK = "hybrid_units/linear_driver", "hybrid_units/unpack_driver"
GPUS = ((4, 227 << 10), (3, 99 << 10))  # multiprocessors, bytes of shared memory
WARPS = ((1, 1), (2, 1), (1, 2), (2, 3))
NATIVE = [number for number, (_, row_units, _) in enumerate(SHAPES) if row_units <= 2]


def planned(number: int, shape: int, warps: tuple[int, int], blocks: int, **rest) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, row_units, most = SHAPES[shape]
    stages = 3 if tokens == 8 and warps != (2, 3) else 2
    if warps[0] * warps[1] > most or (tokens == 64 and warps[1] > 1) or row_units * warps[1] > 4:
        warps = (1, 1)
    plan = Plan(shape, *warps, stages, 2, blocks)
    rows = 16 * row_units * warps[0] * 2 - 5
    return random_case(rows, 256 * 5 - 7, tokens - number % 3, number, plan=plan, **rest)


def code_shapes(values: str, group: int | None) -> list[int]:
    """The shapes that the driver has codes in."""
    every = [(8, 1), (8, 2), (16, 1), (16, 2), (32, 2), (32, 4)]
    if (values, group) in (("int8", None), ("int4", None), ("int4", 64), ("fp8_e4m3", 128)):
        every = [(8, 2)]
    elif group == 32:
        every = [(8, 2), (32, 4)]
    return [number for number, shape in enumerate(SHAPES) if shape[:2] in every]


def of_codes(values: str, group: int | None, number: int, shape: int, warps: tuple[int, int]):
    """A planned launch of codes, whose rows, columns and groups end anywhere."""
    rounds = group is not None and SHAPES[shape][0] > 16
    options = {"values": values, "group": group}
    return planned(number, shape, warps, 1 + number % 3, options=options, rounds=rounds)


def planned_cases() -> list[Case]:
    """Every shape by every arrangement of warps; blocks that share a set, own one, or own two."""
    cases = []
    for shape in NATIVE:
        for warps in WARPS:
            number = len(cases)
            cases.append(planned(number, shape, warps, 1 + number % 3))
    return cases


def test_every_compiled_shape_is_right(driver):
    require_all(driver(LINEAR, "plain"), planned_cases())


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_are_multiplied(driver, values, group):
    """In both dtypes, by one and by several warps; to the same bits in any schedule."""
    cases = []
    for shape in code_shapes(values, group):
        for warps in ((1, 2), (2, 1)):
            cases.append(of_codes(values, group, len(cases) + 1, shape, warps))
    require_all(driver(LINEAR, "plain"), cases)
    found = require_all(driver(LINEAR, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_every_product_as_it_is_planned(driver, gpu):
    cases = []
    tokens = [1, 7, 8, 9, 16, 17, 32, *([33, 64] if gpu[1] > 128 << 10 else [])]
    sizes = [(1, 1), (33, 100), (100, 1300), (17, 257), (300, 300), (15, 512)]
    for number, count in enumerate(tokens * 2):
        cases.append(random_case(*sizes[number % len(sizes)], count, number, gpu=gpu))
        if count <= 32:
            cases.append(replace(cases[-1], options={"values": "fp8_e4m3"}))
    require_all(driver(LINEAR, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    """Also sums between blocks, whichever comes last."""
    for case in (planned(1, 1, (2, 2), 2), planned(2, 2, (1, 2), 5)):
        found = require_all(driver(LINEAR, "plain"), case.with_seeds())
        assert all(torch.equal(y, found[0]) for y in found)


def test_plans_give_the_same_but_for_rounding(driver):
    case = random_case(100, 1300, 5, 1)
    for blocks, warps in ((1, (1, 1)), (4, (2, 2)), (12, (1, 3))):
        plan = Plan(0, *warps, 2, 2, blocks)
        require_all(driver(LINEAR, "plain"), [replace(case, plan=plan)])


@pytest.mark.parametrize("dense", [0, 1])
def test_unit_vectors_give_every_weight(driver, dense):
    """Of units of one kind, and of either beside the other."""
    for share in (dense, 0.5):
        weight = keep_dense(torch.randn(32, 512).to(torch.bfloat16), share, 1)
        units = torch.eye(512, dtype=torch.bfloat16)
        cases = [Case(weight, part, plan=Plan(5, 1, 2, 2, 2, 1)) for part in units.split(32)]
        assert torch.equal(torch.cat(answers(driver(LINEAR, "plain"), cases)).T, weight)


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """Of weights that are kept; and what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 4)  # all dense
    weight, x = case.weight.clone(), case.x.clone()
    weight[5, 290], weight[17, 3], weight[39, 299] = torch.inf, -torch.inf, torch.nan
    x[1, 290], x[2, 290], x[3, 290] = torch.inf, torch.nan, 0.0
    for plan in (Plan(0, 1, 1, 2, 2, 1), Plan(0, 2, 2, 2, 2, 1), Plan(1, 1, 2, 2, 2, 1)):
        (y,) = answers(driver(LINEAR, "plain"), [replace(case, weight=weight, x=x, plan=plan)])
        right = x.double() @ weight.double().T
        right = (right if case.bias is None else right + case.bias.double()).to(y.dtype)
        wild = ~right.isfinite()
        assert torch.equal(wild, ~y.isfinite())
        assert torch.equal(y[wild].nan_to_num(0), right[wild].nan_to_num(0))


KEPT = [0, 3, 6]  # shapes: of 1, 2 and 4 units of rows
FEW_SHAPES = with_few_shapes(PLAN_HEADER, KEPT)


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    parts = ["cuda/sparse_24/linear_block.cuh", "cuda/hybrid_units/weight_ring.cuh"]
    parts += [f"cuda/mma_units/{part}.cuh" for part in ("sums", "partial_sums", "x_ring")]
    pattern = r"(?:__syncthreads|__syncwarp|sync_threads_of|mbarrier_wait)\([^;]*\);"
    headers, places = with_switched_barriers(parts, pattern)
    return compile_driver(LINEAR, "thread", headers | FEW_SHAPES), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(n, shape, (2, 2), 3) for n, shape in enumerate((0, 3))]
    cases += [random_case(33, 1300, 9, 3), random_case(17, 257, 15, 4)]
    for number, each in enumerate(CODES):
        shape = max(set(code_shapes(*each)) & {1, *KEPT}, default=1)
        shape = shape if shape in KEPT else None
        if shape is not None:
            cases.append(of_codes(*each, number, shape, (1, 2)))
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
    cases = [planned(1, 3, (2, 2), 3), planned(2, 0, (1, 2), 5)]  # with sums between blocks
    cases.append(random_case(60, 1790, 8, 5, plan=Plan(0, 2, 2, 2, 2, 1)))  # that reuses all stages
    int4 = {"values": "int4", "group": 128}
    cases.append(replace(cases[-1], options=int4))  # whose scales lanes copy for each other
    # First one whose blocks run one after the other: it catches most, with the fewest threads.
    cases = [cases[0], *(replace(case, seed=7) for case in cases)]
    assert spared(binary, places, cases, judge) == []


def test_a_plan_that_cannot_be_is_refused(driver):
    case = random_case(40, 300, 6, 2)
    for plan, told in (
        (Plan(99), "no such shape"),
        (Plan(0, 4, 4), "fewer warps"),
        (Plan(0, 1, 1, 0), "at least one stage"),
        (Plan(0, 15, 1, 20), "too little shared memory"),
        (Plan(1, 1, 1, 17), "at most 32 units"),
        (Plan(0, blocks=7), "at least one step"),
    ):
        ran = run(driver(LINEAR, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    for options, plan in (
        ({"values": "int8"}, Plan(6)),
        ({"values": "int8"}, Plan(4)),
    ):
        ran = run(driver(LINEAR, "plain"), [replace(case, options=options, plan=plan)])
        assert ran.returncode == 1 and "no such shape" in ran.stderr.decode()
    ran = run(driver(LINEAR, "plain"), [replace(random_case(40, 300, 9, 2), plan=Plan(0))])
    assert ran.returncode == 1 and "other numbers of tokens" in ran.stderr.decode()


def unpack(binary, cases: list[tuple[PackedWeight, int]]) -> list[torch.Tensor]:
    fed = []
    for packed, seed in cases:
        header = [*packed.shape, seed, int(packed.dtype == torch.bfloat16)]
        fed += [np.array(header, dtype=np.int64).tobytes(), encoded(packed)]
    ran = subprocess.run([str(binary)], input=b"".join(fed), capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    bits = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())
    parts = bits.split([packed.shape[0] * packed.shape[1] for packed, _ in cases])
    return [part.view(packed.shape) for part, (packed, _) in zip(parts, cases, strict=True)]


UNPACKED = [(1, 1), (16, 256), (33, 100), (35, 513), (17, 1030), (20, 270)]


@pytest.mark.parametrize("sanitizer", ["plain", *SANITIZED])
def test_unpacking_gives_every_bit_back(driver, sanitizer):
    cases, weights = [], []
    for seed, shape in enumerate(UNPACKED):
        bits = bits_without_negative_zero(every_bit_pattern(shape, torch.float16, seed))
        kept = keep_dense(torch.rand(shape) + 1, 0.5, seed) != 0
        weights.append(bits.where(kept, 0))
        packed = FORM.pack(weights[-1].view(torch.float16), FORM.scheme(torch.float16))
        cases.append((packed, SEEDS[seed % 3]))
    for seed, (values, group) in enumerate(CODES):
        for dtype in FORM.dtypes:
            scheme = FORM.scheme(dtype, {"values": values, "group": group})
            weight = keep_dense(torch.randn(UNPACKED[seed % 6]).to(dtype), 0.5, seed)
            packed = FORM.pack(weight, scheme)
            weights.append(bits_without_negative_zero(FORM.reference.unpack(packed)))
            cases.append((packed, SEEDS[seed % 3]))
    found = unpack(driver(UNPACK, sanitizer), cases)
    for bits, wanted, (packed, _) in zip(found, weights, cases, strict=True):
        if packed.scheme.quantization is not None:  # a code 0 is -0 by a negative scale
            bits = bits_without_negative_zero(bits)
        assert torch.equal(bits, wanted)


def test_any_words_of_units_stay_in_bounds(driver):
    """Only what offsets say is an address."""
    generator = torch.Generator().manual_seed(3)
    case = random_case(35, 300, 8, 1)
    tensors = dict(case.packed.tensors)
    size = tensors["units"].shape
    tensors["units"] = torch.randint(-(2**31), 2**31, size, generator=generator).to(torch.int32)
    damaged = PackedWeight(case.scheme, case.packed.shape, tensors)
    unpack(driver(UNPACK, "plain"), [(damaged, 0)])
