# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of sparse_24, their own source, run on the CPU by the emulator."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_products import spared, token_scales
from emulated_sparse_24 import (
    CODES,
    SHAPES,
    TWO_OF_FOUR,
    VALUES,
    Case,
    Plan,
    integer_product,
    judge,
    random_case,
    require_all,
    require_rounded,
    run,
    split,
)
from emulation import (
    EACH_BUILD,
    SANITIZED,
    SEEDS,
    compile_driver,
    with_few_shapes,
    with_switched_barriers,
)
from kernel_weights import bits_without_negative_zero, every_bit_pattern

from flashsparse_plugin.formats.pattern.options import PatternOptions
from flashsparse_plugin.formats.pattern.sparse_24 import Sparse24
from flashsparse_plugin.formats.values.activations import quantise_tokens, rounded_tokens
from flashsparse_plugin.formats.values.types import VALUE_TYPES
from flashsparse_plugin.packed import PackedWeight

LINEAR, UNPACK = "sparse_24/linear_driver", "sparse_24/unpack_driver"
CODES_X = "sparse_24/linear_codes_driver"
GPUS = ((4, 227 << 10), (3, 99 << 10))  # multiprocessors, bytes of shared memory
WARPS = ((1, 1), (2, 1), (1, 2), (2, 3))


def planned(number: int, shape: int, warps: tuple[int, int], blocks: int) -> Case:
    """A launch of a compiled shape, over ends of rows, columns and tokens that fit nothing."""
    tokens, row_units, most = SHAPES[shape]
    stages = 3 if tokens == 8 else 2
    if warps[0] * warps[1] > most or (tokens == 64 and warps[1] > 2) or row_units * warps[1] > 6:
        warps = (1, 1)
    plan = Plan(shape, *warps, stages, stages, blocks)
    rows = 16 * row_units * warps[0] * 2 - 5
    return random_case(rows, 256 * 5 - 7, tokens - number % 3, number, plan=plan)


def code_shapes(values: str, group: int | None) -> list[int]:
    """The shapes that the driver has codes in."""
    every = [(8, 1), (8, 2), (16, 2), (32, 4)]
    if (values, group) == ("fp8_e4m3", None):
        every.append((16, 1))  # compiled for 8 bits
    if (values, group) in (("int8", None), ("int4", None), ("int4", 64), ("fp8_e4m3", 128)):
        every = [(8, 2)]
    elif group == 32:
        every = [(8, 2), (32, 4)]
    return [number for number, shape in enumerate(SHAPES) if shape[:2] in every]


def of_codes(values: str, group: int | None, number: int, shape: int, warps: tuple[int, int]):
    """A planned launch of codes, whose rows, columns and groups end anywhere."""
    options = PatternOptions(n=2, m=4, values=values, group=group)
    rounds = group is not None and SHAPES[shape][0] > 16
    case = planned(number, shape, warps, 1 + number % 3)
    return replace(case, options=options, rounds=rounds)


def planned_cases() -> list[Case]:
    """Every shape by every arrangement of warps; blocks that share a set, own one, or own two."""
    cases = []
    for shape in range(len(SHAPES)):
        for warps in WARPS:
            number = len(cases)
            cases.append(planned(number, shape, warps, 1 + number % 3))
    return cases


def test_every_compiled_shape_is_right(driver):
    require_all(driver(LINEAR, "plain"), planned_cases())


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_are_multiplied(driver, values, group):
    """In both dtypes, by one and by several warps; to the same bits in any schedule.

    Every second case has scales of tokens, as 16-bit codes of quantized activations do.
    """
    cases = []
    for shape in code_shapes(values, group):
        for warps in ((1, 2), (2, 1)):
            case = of_codes(values, group, len(cases) + 1, shape, warps)
            scales = token_scales(case.x) if len(cases) % 2 else None
            cases.append(replace(case, x_scales=scales))
    require_all(driver(LINEAR, "plain"), cases)
    found = require_all(driver(LINEAR, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


@pytest.mark.parametrize(("values", "group"), CODES)
def test_codes_take_infinity_and_nan_of_x_where_they_are_kept(driver, values, group):
    case = of_codes(values, group, 1, code_shapes(values, group)[-1], (1, 1))
    x, column = case.x.clone(), int((case.exact[0] != 0).nonzero()[-1])
    x[1, column], x[2, column] = torch.inf, torch.nan
    (y,) = split(run(driver(LINEAR, "plain"), [replace(case, x=x)]).stdout, [case])
    kept = case.exact[:, column] != 0
    assert not torch.isfinite(y[1:3, kept]).any()
    wide = torch.nn.functional.pad(case.exact, (0, -case.exact.shape[1] % 4))
    full = (wide.view(len(wide), -1, 4) != 0).sum(-1)[:, column // 4] == 2
    assert torch.isfinite(y[1:3, full & ~kept]).all() and torch.isfinite(y[0]).all()


ROUNDED = ("fp8_e4m3", "int8")
ROUNDED_SHAPES = [(8, 1), (8, 2), (16, 2), (32, 4), (64, 2)]


def rounded_cases(values: str) -> list[Case]:
    """Products by codes of x in every shape; of one token nothing is left, another is tiny."""
    cases = []
    for shape in [n for n, shape in enumerate(SHAPES) if shape[:2] in ROUNDED_SHAPES]:
        number = len(cases)
        cases.append(of_codes(values, None, number, shape, ((1, 2), (2, 1), (2, 3))[number % 3]))
    cases[0].x[3], cases[0].x[4] = 0, cases[0].x[4] * 1e-20
    return cases


@pytest.mark.parametrize("values", ROUNDED)
def test_codes_are_multiplied_by_codes(driver, values):
    """In every shape, as it is planned on GPUs with little and much shared memory; always alike."""
    cases = rounded_cases(values)
    for number, gpu in enumerate(GPUS):
        plain = random_case(33, 300, 40 - 23 * number, number, gpu=gpu)
        cases.append(replace(plain, options=cases[0].options))
    require_rounded(driver(CODES_X, "plain"), cases)
    found = require_rounded(driver(CODES_X, "plain"), cases[0].with_seeds())
    assert all(torch.equal(y, found[0]) for y in found)


def test_sums_of_int8_are_exact(driver):
    """To the last bit, by any plan: integers, rounded once, and then scaled.

    The last of them has more bits than a float.
    """
    cases = rounded_cases("int8")
    wide = random_case(40, 4100, 5, plan=Plan(1, 1, 2, 2, 2, 2), options=cases[0].options)
    weight = torch.where(wide.weight == 0, 0, wide.weight.abs() + 99)
    cases.append(replace(wide, x=wide.x.abs() + 99, weight=weight))
    cases = [replace(case, bias=None) for case in cases]
    ran = run(driver(CODES_X, "plain"), cases)
    for case, y in zip(cases, split(ran.stdout, cases), strict=True):
        sums, exact = integer_product(case)
        assert torch.equal(y, exact)
    assert (sums.float().long() != sums).any()


@pytest.mark.parametrize("values", ROUNDED)
def test_no_token_is_too_small(driver, values):
    """Where the inverse of a largest magnitude is no float32, and where the scale is subnormal."""
    case = replace(of_codes(values, None, 1, 0, (1, 2)), bias=None)
    assert case.x.dtype == torch.bfloat16
    exponents = torch.arange(len(case.x)) % 3 * 8 - 118
    largest = case.x.abs().amax(1, keepdim=True)
    x = (case.x / largest).double() * torch.exp2(exponents.double())[:, None]
    large = replace(case, x=(case.x / largest) * 2.0**100)
    for each in (replace(case, x=x.bfloat16()), large):
        (y,) = split(run(driver(CODES_X, "plain"), [each]).stdout, [each])
        codes = rounded_tokens(each.x, VALUE_TYPES[values])
        exact, magnitude = codes @ each.exact.T, codes.abs() @ each.exact.abs().T
        room = magnitude * 2**-14 + exact.abs() * 2**-8 + 2.0**-133
        assert ((y.double() - exact).abs() <= room).all() and y.any(1).all()


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_codes_in_16_bits_are_the_numbers_of_codes(dtype, sanitizer):
    """In the order of columns, zero past the last; with scales that tell of what has no code."""
    binary, fp8 = compile_driver("sparse_24/quantise_x_driver", sanitizer), VALUE_TYPES["fp8_e4m3"]
    for seed, columns in zip(SEEDS, (8, 300, 8456), strict=True):
        x = torch.randn(5, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)
        x[0], x[1] = 0, x[1] * 2.0 ** (-120 if dtype == torch.bfloat16 else -12)
        x[2, 3], x[3, 7] = torch.inf, torch.nan
        stored = torch.nn.functional.pad(x, (0, -columns % 8))
        header = np.array([5, columns, dtype == torch.bfloat16, seed], dtype=np.int64).tobytes()
        fed = header + stored.view(torch.int16).numpy().tobytes()
        ran = subprocess.run([str(binary)], input=fed, capture_output=True, timeout=300)
        assert ran.returncode == 0, ran.stderr.decode()
        width = -(-columns // 32) * 32
        codes = torch.from_numpy(np.frombuffer(ran.stdout, np.int16, 5 * width).copy())
        codes = codes.view(dtype).view(5, width)
        scales = torch.from_numpy(np.frombuffer(ran.stdout[10 * width :], np.float32).copy())
        numbers, wanted = quantise_tokens(x, fp8)
        finite = [0, 1, 4]
        assert torch.equal(codes[finite, :columns].float(), numbers[finite])
        assert (codes[finite, columns:] == 0).all()
        # The second token's scale is a subnormal number, of fewer bits.
        assert torch.allclose(scales[[1, 4]], wanted[[1, 4], 0], rtol=1e-6, atol=0)
        assert scales[2:4].isnan().all()
        assert scales[0].isfinite()


@pytest.mark.parametrize("values", ROUNDED)
def test_rounded_activations_spoil_no_other_token(driver, values):
    case = of_codes(values, None, 1, 1, (1, 2))
    x, column = case.x.clone(), int((case.exact[0] != 0).nonzero()[-1])
    x[1, column], x[2, column] = torch.inf, torch.nan
    (y,) = split(run(driver(CODES_X, "plain"), [replace(case, x=x)]).stdout, [case])
    others = torch.tensor([token not in (1, 2) for token in range(len(x))])
    assert torch.isnan(y[1:3]).all() and torch.isfinite(y[others]).all()


@pytest.mark.parametrize("gpu", GPUS, ids=str)
def test_every_product_as_it_is_planned(driver, gpu):
    cases = []
    tokens = [1, 7, 8, 9, 16, 17, 32, *([33, 64] if gpu[1] > 128 << 10 else [])]
    sizes = [(1, 1), (33, 100), (100, 1300), (17, 257), (300, 300), (15, 512)]
    for number, count in enumerate(tokens * 2):
        cases.append(random_case(*sizes[number % len(sizes)], count, number, gpu=gpu))
        if count <= 32:
            options = PatternOptions(n=2, m=4, values="fp8_e4m3")
            cases.append(replace(cases[-1], options=options))
    require_all(driver(LINEAR, "plain"), cases)


def test_schedules_give_the_same_bits(driver):
    """Also sums between blocks, whichever comes last."""
    for case in (planned(1, 1, (2, 3), 2), planned(2, 2, (1, 2), 5)):
        cases = case.with_seeds()
        found = require_all(driver(LINEAR, "plain"), cases)
        assert all(torch.equal(y, found[0]) for y in found)


def test_plans_give_the_same_but_for_rounding(driver):
    case = random_case(100, 1300, 5, 1)
    for blocks, warps in ((1, (1, 1)), (4, (2, 2)), (12, (1, 3))):
        plan = Plan(0, *warps, 2, 2, blocks)
        require_all(driver(LINEAR, "plain"), [replace(case, plan=plan)])


def test_infinity_and_nan_go_where_the_dense_product_takes_them(driver):
    """Of weights that are kept; and what lies beyond the edges of a weight makes no NaN."""
    case = random_case(40, 300, 6, 2)
    weight = case.weight.clone()
    row, column = (weight[:, 290:] != 0).nonzero()[-1].tolist()
    weight[row, 290 + column] = torch.inf
    x = case.x.clone()
    x[1, 290 + column] = torch.inf
    x[2, 290 + column] = torch.nan
    x[3, 290 + column] = 0
    for plan in (Plan(0, 1, 1, 2, 2, 1), Plan(0, 2, 3, 2, 2, 2), Plan(3, 1, 2, 2, 2, 1)):
        ran = run(driver(LINEAR, "plain"), [replace(case, weight=weight, x=x, plan=plan)])
        (y,) = split(ran.stdout, [case])
        assert torch.isinf(y[[0, 1, 4, 5], row]).all() and torch.isnan(y[[2, 3], row]).all()
        others = torch.arange(40) != row
        assert torch.isfinite(y[0][others]).all() and torch.isnan(y[3, row])
        kept = weight[:, 290 + column] != 0
        assert not torch.isfinite(y[1][kept]).any() and not torch.isfinite(y[2][kept]).any()
        # A place that is filled up with zero is multiplied, too; others are not.
        full = (weight.view(40, -1, 4) != 0).sum(-1)[:, (290 + column) // 4] == 2
        assert torch.isfinite(y[1][others & full & ~kept]).all()


# Shapes of the cases below, which the sanitizers' programs are compiled for: for products and for
# those by codes of x.
PLAN_HEADER = "cuda/sparse_24/linear_plan.h"
FEW_SHAPES = with_few_shapes(PLAN_HEADER, (0, 1, 2, 3, 6, 7, 8))
FEW_OF_CODES = with_few_shapes(PLAN_HEADER, (0, 3, 8))


def switched_driver() -> tuple[Path, list[str]]:
    """Under the thread sanitizer: one program for what is right and for all mutants."""
    parts = [f"cuda/sparse_24/{part}.cuh" for part in ("linear_block", "weight_ring")]
    parts += [f"cuda/mma_units/{part}.cuh" for part in ("sums", "partial_sums", "x_ring")]
    pattern = r"(?:__syncthreads|__syncwarp|sync_threads_of|mbarrier_wait)\([^;]*\);"
    headers, places = with_switched_barriers(parts, pattern)
    return compile_driver(LINEAR, "thread", headers | FEW_SHAPES), places


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_sanitizers_find_nothing(sanitizer):
    cases = [planned(n, shape, (2, 2), 3) for n, shape in enumerate((0, 3, 8))]
    cases += [random_case(33, 1300, 9, 3), random_case(17, 257, 64, 4)]
    cases += [of_codes(*each, 2, code_shapes(*each)[-1], (1, 2)) for each in CODES]
    switched = sanitizer == "thread"
    binary = switched_driver()[0] if switched else compile_driver(LINEAR, sanitizer, FEW_SHAPES)
    require_all(binary, [replace(case, seed=7) for case in cases])
    for values in ROUNDED:
        cases = [replace(case, seed=7) for case in rounded_cases(values)[::2]]
        require_rounded(compile_driver(CODES_X, sanitizer, FEW_OF_CODES), cases)


@pytest.mark.slow
def test_no_barrier_can_be_spared():
    """Without any one of them a race is found, a deadlock, or a wrong result."""
    binary, places = switched_driver()
    cases = [planned(1, 1, (2, 3), 3), planned(2, 0, (1, 2), 5)]  # with sums between blocks
    cases.append(random_case(60, 1790, 8, 3, plan=Plan(0, 2, 2, 2, 2, 1)))  # that reuses all stages
    int4 = PatternOptions(n=2, m=4, values="int4", group=128)
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
        (Plan(0, blocks=7), "at least one step"),
    ):
        ran = run(driver(LINEAR, "plain"), [replace(case, plan=plan)])
        assert ran.returncode == 1 and told in ran.stderr.decode()
    int8 = PatternOptions(n=2, m=4, values="int8")
    wide = replace(case, options=int8, plan=Plan(0)).encode()[: 17 * 8]
    wide = wide[:8] + (2**18 + 1).to_bytes(8, "little") + wide[16:]
    ran = subprocess.run([str(driver(CODES_X, "plain"))], input=wide, capture_output=True)
    assert ran.returncode == 1 and "262144 columns of int8" in ran.stderr.decode()
    int4 = replace(case, options=PatternOptions(n=2, m=4, values="int4"), plan=Plan(0))
    ran = run(driver(CODES_X, "plain"), [int4])
    assert ran.returncode == 1 and "codes of 8 bits where the values are" in ran.stderr.decode()
    ran = run(driver(LINEAR, "plain"), [replace(case, options=int8, plan=Plan(4))])
    assert ran.returncode == 1 and "no such shape" in ran.stderr.decode()
    ran = run(driver(LINEAR, "plain"), [replace(random_case(40, 300, 9, 2), plan=Plan(0))])
    assert ran.returncode == 1 and "other numbers of tokens" in ran.stderr.decode()


def unpack(binary, cases: list[tuple[PackedWeight, int]]) -> list[torch.Tensor]:
    fed = []
    for packed, seed in cases:
        options = packed.scheme.options
        how = packed.dtype == torch.bfloat16, VALUES.index(options.values), options.group or 0
        fed.append(np.array([*packed.shape, seed, *how], dtype=np.int64).tobytes())
        fed += [tensor.numpy().tobytes() for tensor in packed.tensors.values()]
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
        scheme = Sparse24().scheme(torch.float16, TWO_OF_FOUR.model_dump())
        bits = bits_without_negative_zero(every_bit_pattern(shape, torch.float16, seed))
        kept = TWO_OF_FOUR.keep_largest(torch.rand(shape) + 1) != 0
        weights.append(bits.where(kept, 0))
        cases.append((Sparse24().pack(weights[-1].view(torch.float16), scheme), SEEDS[seed % 3]))
    for seed, (values, group) in enumerate(CODES):
        for dtype in Sparse24().dtypes:
            options = {"n": 2, "m": 4, "values": values, "group": group}
            weight = TWO_OF_FOUR.keep_largest(torch.randn(UNPACKED[seed % 6]).to(dtype))
            packed = Sparse24().pack(weight, Sparse24().scheme(dtype, options))
            weight = Sparse24().reference.unpack(packed)
            weights.append(bits_without_negative_zero(weight))
            cases.append((packed, SEEDS[seed % 3]))
    found = unpack(driver(UNPACK, sanitizer), cases)
    for bits, wanted, (packed, _) in zip(found, weights, cases, strict=True):
        if packed.scheme.quantization is not None:  # a code 0 is -0 by a negative scale
            bits = bits_without_negative_zero(bits)
        assert torch.equal(bits, wanted)


def test_unpacking_any_words_stays_in_bounds(driver):
    generator = torch.Generator().manual_seed(3)
    units = torch.randint(-(2**31), 2**31, (3, 2, 1152), generator=generator).to(torch.int32)
    scheme = Sparse24().scheme(torch.float16, TWO_OF_FOUR.model_dump())
    unpack(driver(UNPACK, "plain"), [(PackedWeight(scheme, (35, 300), {"units": units}), 0)])
