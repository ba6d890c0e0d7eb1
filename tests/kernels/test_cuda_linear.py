# SPDX-License-Identifier: Apache-2.0
"""The CUDA linear kernel's own source, run on the CPU by the emulator, against float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, cycle, product
from pathlib import Path

import pytest
import torch
from emulated_linear import Case, answers, random_case, require_exact, run, split
from emulation import (
    KERNELS,
    SANITIZED,
    SEEDS,
    UNTIL_A_RACE,
    compile_cuda,
    compile_driver,
    find_nvcc,
    is_caught,
    with_switched_barriers,
)
from kernel_weights import every_bit_pattern, skewed_weight

PLAN = "cuda/tiled_csl/linear_plan.h"
PARTS = (
    *("linear_block.cuh", "stream_k.cuh", "tile_source.cuh", "team.cuh", "tile_x.cuh"),
    *("multiply_mma.cuh", "multiply_wgmma.cuh"),
)
SIZES = (1, 63, 64, 65, 127, 128, 129, 300)
TOKENS = (1, 3, 8, 16, 17, 32, 64, 100)
DENSITIES = (0, 0.01, 0.2, 0.5, 0.51, 0.99, 1)
BLOCKS = (1, 2, 3, 5, 7)
HOPPER, OTHER = -1, -2  # what Case.shape may be besides an index
COMPILED = re.findall(r"^  X\((.*)\)", (KERNELS / PLAN).read_text(), re.M)
SHAPES = [  # tokens, for Hopper, wgmma
    (int(tokens), hopper == "true", wgmma == "true")
    for tokens, hopper, wgmma, *_ in (shape.split(", ") for shape in COMPILED)
]
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def product_of(weight: torch.Tensor, tokens: int, number: int, **rest) -> Case:
    """One with normal x, and a bias by turns."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(tokens, weight.shape[1], generator=generator).to(weight.dtype)
    bias = torch.randn(len(weight), generator=generator).to(weight.dtype)
    return Case(weight, x, bias if number % 3 else None, **rest)


def uneven_weight(tile_rows: int, tile_cols: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Tiles of every kind side by side: empty, nearly empty, half, and full; all edges cut."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.tensor([1, 0, 0.51, 0.01, 0.5, 0.99, 0.2])
    kinds = kinds[torch.arange(tile_rows * tile_cols) % len(kinds)].view(tile_rows, tile_cols)
    density = kinds.repeat_interleave(128, 0).repeat_interleave(64, 1)[:-3, :-5]
    kept = torch.rand(density.shape, generator=generator) < density
    return (torch.randn(density.shape, generator=generator) * kept).to(dtype)


def planned_cases(gpu: int) -> list[Case]:
    """Every pair of sizes and every pair of tokens and density, the rest by turns."""
    tokens = [number for number in TOKENS if gpu == HOPPER or number <= 32]
    sizes, loads = list(product(SIZES, SIZES)), list(product(tokens, DENSITIES))
    pairs = [*zip(sizes, cycle(loads), strict=False)]
    pairs += [(size, load) for load, size in zip(loads, cycle(reversed(sizes)), strict=False)]
    blocks = cycle((*BLOCKS, 16))
    return [
        random_case(*size, *load, seed, shape=gpu, blocks=next(blocks))
        for seed, (size, load) in enumerate(pairs)
    ]


def compiled_cases() -> list[Case]:
    """Every compiled shape: one tile row and several, cut into few pieces and into many."""
    seeds = count()
    cases = []
    for shape, (tokens, *_) in enumerate(SHAPES):
        for blocks, used in zip(BLOCKS, cycle((tokens, 1, tokens - 3)), strict=False):
            seed = next(seeds)
            dtype = (FLOAT16, BFLOAT16)[seed % 2]
            weight = uneven_weight(3, 4, dtype, seed)
            cases.append(product_of(weight, used, seed, shape=shape, blocks=blocks))
        seed = next(seeds)
        weight = skewed_weight((300, 257), (FLOAT16, BFLOAT16)[seed % 2], seed)
        cases.append(product_of(weight, tokens, seed, shape=shape, blocks=BLOCKS[shape % 5]))
    return cases


def split_cases() -> list[Case]:
    """One tile row cut into 1 to 7 pieces, and nine tile rows of which a block has several."""
    shapes = [SHAPES.index(shape) for shape in dict.fromkeys(SHAPES)]
    cases = []
    for shape, (rows, cols) in product(shapes, ((1, 7), (9, 1))):
        for blocks in range(1, 8):
            weight = uneven_weight(rows, cols, (FLOAT16, BFLOAT16)[blocks % 2], blocks)
            tokens = SHAPES[shape][0] - blocks % 2
            cases.append(product_of(weight, tokens, blocks, shape=shape, blocks=blocks))
    return cases


def long_cases() -> list[Case]:
    """A block with as many tiles as it may have: of one row, of 32 rows, and of 1024."""
    sizes = ((1, 1024 * 64), (32 * 128, 32 * 64), (1024 * 128, 1))
    shapes = (SHAPES.index((8, True, False)), SHAPES.index((32, False, False)))
    return [
        random_case(*size, 3, 0.01, number, shape=shape, blocks=1)
        for number, (size, shape) in enumerate(product(sizes, shapes))
    ]


MATRIX = {
    "planned for Hopper": lambda: planned_cases(HOPPER),
    "planned for others": lambda: planned_cases(OTHER),
    "every compiled shape": compiled_cases,
    "split": split_cases,
    "long": long_cases,
}


def assert_exact(binary: Path, cases: list[Case]) -> None:
    """Every case is right, and has the same bits on every schedule."""
    expected = answers(binary, [replace(case, seed=SEEDS[0]) for case in cases])
    for case, y in zip(cases, expected, strict=True):
        require_exact(case, y)
    for seed in SEEDS[1:]:
        again = answers(binary, [replace(case, seed=seed) for case in cases])
        for case, y, same in zip(cases, again, expected, strict=True):
            assert torch.equal(y.view(torch.int16), same.view(torch.int16)), f"{case}, not {seed}"


def test_the_compiled_shapes_are_known():
    kinds = {(hopper, wgmma) for _, hopper, wgmma in SHAPES}
    assert kinds == {(True, True), (True, False), (False, False)}


QUICK = ("planned for others", "split")


@pytest.mark.parametrize(
    "cases",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MATRIX],
)
def test_products(driver, cases):
    assert_exact(driver("tiled_csl/linear_driver", "plain"), MATRIX[cases]())


def with_shapes(shapes: Sequence[str]) -> dict[str, str]:
    """The plan's header with other shapes: a driver that is soon compiled."""
    lines = "".join(f" \\\n  X({shape})" for shape in shapes)
    text, replaced = re.subn(
        r"(#define FS_LINEAR_SHAPES\(X\))(?: *\\\n +X\(.*?\))+", lambda m: m[1] + lines,
        (KERNELS / PLAN).read_text(),
    )  # fmt: skip
    assert replaced == 1
    return {PLAN: text}


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_products_under_sanitizers(sanitizer):
    """One shape of each kind with several blocks at once; what the host plans at awkward sizes."""
    kinds = [SHAPES.index(shape) for shape in dict.fromkeys(SHAPES)]
    headers = with_shapes([COMPILED[kind] for kind in kinds])
    binary = compile_driver("tiled_csl/linear_driver", sanitizer, headers)
    cases = [
        product_of(uneven_weight(2, 3, (FLOAT16, BFLOAT16)[kind % 2], kind), SHAPES[kind][0],
                   kind, shape=shape, blocks=4, seed=7)
        for shape, kind in enumerate(kinds)
    ]  # fmt: skip
    for gpu in (HOPPER, OTHER):
        cases += [
            random_case(rows, cols, tokens, 0.4, seed, shape=gpu, blocks=3, seed=SEEDS[seed % 3])
            for seed, (rows, cols, tokens) in enumerate(
                [(1, 1, 1), (129, 63, 3), (300, 65, 8), (127, 300, 17), (63, 129, 32)]
            )
        ]
    for case, y in zip(cases, answers(binary, cases), strict=True):
        require_exact(case, y)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_token(driver, value):
    binary = driver("tiled_csl/linear_driver", "plain")
    cases = []
    for shape, (tokens, *_) in enumerate(SHAPES):
        weight = uneven_weight(2, 3, (FLOAT16, BFLOAT16)[shape % 2], shape)
        cases.append(product_of(weight, tokens, shape, shape=shape, blocks=4))
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
        kept = case.weight[:, column] != 0
        assert not y[token, kept].isfinite().any(), case
        assert y[token, ~kept].isnan().all(), case  # as in a dense product


def test_weights_of_every_bit_pattern(driver):
    """NaN and infinities in a row of the weight stay in that feature; the rest is a product."""
    cases = []
    for shape, (tokens, *_) in enumerate(SHAPES):
        dtype = (FLOAT16, BFLOAT16)[shape % 2]
        weight = uneven_weight(2, 3, dtype, shape)
        weight[5::9] = every_bit_pattern(tuple(weight[5::9].shape), dtype, shape)
        cases.append(product_of(weight, tokens, shape, shape=shape, blocks=3))
    for case, y in zip(
        cases, answers(driver("tiled_csl/linear_driver", "plain"), cases), strict=True
    ):
        rows = torch.arange(len(case.weight)) % 9 != 5
        bias = None if case.bias is None else case.bias[rows]
        require_exact(replace(case, weight=case.weight[rows], bias=bias), y[:, rows])
        poisoned = ~case.weight.isfinite().all(1)
        assert not y[:, poisoned].isfinite().any()


# ---- every barrier is needed --------------------------------------------------------------------

# What orders memory, or waits for it.
ORDER = (
    r"(?:\b\w+_?\.)?\b(?:__syncthreads|__syncwarp|sync|sync_threads_of|fence_for_wgmma|"
    r"copy_async_commit|copy_async_wait<0>|wgmma_begin|wgmma_commit|wgmma_wait|wait_x|wait)"
    r"\([^;{}]*\);"
)
# Small blocks, few words in registers, and teams of every size: of one warp, too, which no shape
# that is compiled has.
SMALL_SHAPES = (
    "8, true, true, 4, 2, 8, 1",
    "16, false, false, 2, 4, 4, 1",
    "16, false, false, 1, 8, 2, 1",
)


def small_cases() -> list[Case]:
    """Full tiles before sparse ones in every team; of three blocks one shares two rows.

    Every shape comes early, and blocks one after the other do before those that run at once, whose
    many threads cost the sanitizer most: nearly all mutants are caught in one of the first cases.
    """
    cases = []
    for seed, blocks, shape in product(SEEDS, (3, 1), range(len(SMALL_SHAPES))):
        weight = uneven_weight(2, 5, BFLOAT16, seed)
        cases.append(product_of(weight, 8, seed + 1, shape=shape, blocks=blocks, seed=seed))
    return cases


@pytest.mark.slow
def test_every_barrier_is_needed():
    headers, places = with_switched_barriers([f"cuda/tiled_csl/{part}" for part in PARTS], ORDER)
    assert len(places) >= 15
    binary = compile_driver(
        "tiled_csl/linear_driver", "thread", headers | with_shapes(SMALL_SHAPES)
    )
    cases = small_cases()

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(cases, split(written, cases), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert not caught(-1)
    survivors = [place for number, place in enumerate(places) if not caught(number)]
    assert survivors == []


# ---- under nvcc ---------------------------------------------------------------------------------

# Where ptxas serializes wgmma or injects waits it says so (C7510 to C7519), but does not warn.
NOT_ASYNCHRONOUS = re.compile(r"C75\d\d|serialized|injected")
TOUCHES_SUMS = """
#include "common/wgmma.cuh"
using namespace flashsparse;
__global__ void __launch_bounds__(128) planted(float* out, uint64_t operand) {
  float d[4] = {};
  wgmma_begin();
  wgmma<Float16, 8>(d, operand, operand);
  d[0] += out[threadIdx.x];
  wgmma<Float16, 8>(d, operand, operand);
  wgmma_commit();
  wgmma_wait(d);
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="this machine has no nvcc")
def test_ptxas_leaves_wgmma_asynchronous(tmp_path):
    # Of the compiled shapes those that multiply by wgmma.
    plan, others = re.subn(r" *\\\n  X\(\d+, \w+, false, .*\)", "", (KERNELS / PLAN).read_text())
    assert others == sum(not wgmma for _, _, wgmma in SHAPES) < len(SHAPES)
    hiding = tmp_path / "hiding" / PLAN
    hiding.parent.mkdir(parents=True)
    hiding.write_text(plan)
    source = KERNELS / "cuda" / "tiled_csl" / "linear.cu"
    _, said = compile_cuda(source, "sm_90a", tmp_path, hiding.parents[2])
    assert not NOT_ASYNCHRONOUS.search(said), said
    planted = tmp_path / "planted.cu"
    planted.write_text(TOUCHES_SUMS)
    assert NOT_ASYNCHRONOUS.search(compile_cuda(planted, "sm_90a", tmp_path)[1])
