# SPDX-License-Identifier: Apache-2.0
"""The packed kernel of nm_gather, its own source run on the CPU by the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch
from emulated_gather import Case, answers, random_case, require_exact, run, split
from emulation import (
    KERNELS,
    SEEDS,
    UNTIL_A_RACE,
    compile_driver,
    is_caught,
    with_switched_barriers,
)
from kernel_weights import every_bit_pattern

DRIVER, PLAN = "nm_gather/packed_driver", "cuda/nm_gather/packed_plan.h"
SHAPES = [  # tokens, rows, stages
    tuple(map(int, found))
    for found in re.findall(r"^  X\((\d+), (\d+), (\d+)\)", (KERNELS / PLAN).read_text(), re.M)
]
# Kept columns of 16 (one panel a section) to 256; panels that begin between multiples of 32.
PATTERNS = [(8, 32), (2, 4), (1, 8), (5, 8), (3, 12), (16, 200)]


@dataclass
class PackedCase(Case):
    """`plan` is shape and band, -1 for the host's own; `gpu` the number of multiprocessors."""

    def launch(self) -> tuple[int, ...]:
        return self.gpu[0], *self.plan


def packed_case(rows: int, cols: int, tokens: int, n: int, m: int, length: int, number: int = 0,
                **rest) -> PackedCase:  # fmt: skip
    case = random_case(rows, cols, tokens, n, m, length, number, gpu=(3, 0), plan=(-1, 1))
    return replace(PackedCase(**vars(case)), **rest)


def cases() -> list[PackedCase]:
    """Every compiled shape: edges of every kind, rings that go around, blocks of several tiles."""
    sizes = [  # rows, cols, tokens of a shape's, multiprocessors, band
        (1, 1, 1, 1, 1),
        (130, 1100, 1.5, 2, 2),
        (257, 200, 2.3, 1, 2),
    ]
    made = []
    for shape, (width, tile_rows, _) in enumerate(SHAPES):
        tile_tokens = width * 128 // tile_rows
        for number, (rows, cols, times, multiprocessors, band) in enumerate(sizes):
            n, m = PATTERNS[(shape + 2 * number) % len(PATTERNS)]
            tokens = max(int(tile_tokens * times) - number, 1)
            made.append(packed_case(
                rows, cols, tokens, n, m, tile_rows, shape + number, plan=(shape, band),
                gpu=(multiprocessors, 0), seed=SEEDS[(shape + number) % 3],
            ))  # fmt: skip
    return made


def test_products_of_every_compiled_shape(driver):
    given = cases()
    for case, y in zip(given, answers(driver(DRIVER, "plain"), given), strict=True):
        require_exact(case, y)


def test_results_are_the_same_on_every_schedule(driver):
    binary = driver(DRIVER, "plain")
    case = cases()[1]
    first, *others = (answers(binary, [replace(case, seed=seed)])[0] for seed in SEEDS)
    for other in others:
        assert torch.equal(first.view(torch.int16), other.view(torch.int16))


# Of 64 rows and 128 tokens, in rings that go around and blocks of several tiles.
def narrow_case(cols: int, n: int, m: int) -> PackedCase:
    shape = SHAPES.index((128, 64, 10))
    return packed_case(257, cols, 300, n, m, 64, 1, plan=(shape, 1), gpu=(2, 0))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_token_and_meets_kept_columns_only(driver, value):
    binary = driver(DRIVER, "plain")
    clean = narrow_case(330, 5, 8)
    dirty = replace(clean, x=clean.x.clone())
    token, column = 290, 329
    dirty.x[token, column] = value
    before, y = answers(binary, [clean, dirty])
    others = torch.arange(len(y)) != token
    assert torch.equal(y[others], before[others])
    kept = clean.weight[:, column] != 0
    assert not y[token, kept].isfinite().any()
    if value == float("inf"):  # no padding met it, which would have made a NaN
        assert not y[token, kept].isnan().any()


def test_weights_of_every_bit_pattern(driver):
    """NaN and infinities in a row of the weight stay in that feature; the rest is a product."""
    case = narrow_case(300, 1, 1)
    weight = case.weight.clone()
    weight[5::9] = every_bit_pattern(tuple(weight[5::9].shape), weight.dtype, 0)
    case = replace(case, weight=weight, packed=(), exact=None)
    (y,) = answers(driver(DRIVER, "plain"), [case])
    rows = torch.arange(len(weight)) % 9 != 5
    bias = None if case.bias is None else case.bias[rows]
    require_exact(replace(case, exact=case.exact[rows], bias=bias), y[:, rows])
    assert not y[:, ~weight.isfinite().all(1)].isfinite().any()


# ---- under sanitizers ---------------------------------------------------------------------------


def with_shapes(shapes: str) -> dict[str, str]:
    """The plan's header with other shapes, that are soon compiled and run."""
    text, replaced = re.subn(
        r"(#define FS_NM_PACKED_SHAPES\(X\))(?: *\\\n +X\(.*?\))+",
        lambda found: f"{found[1]} {shapes}",
        (KERNELS / PLAN).read_text(),
    )
    assert replaced == 1
    return {PLAN: text}


def small_case(shape: int, rows: int) -> PackedCase:
    """Tiles enough for a block to take several, and pairs enough for its ring to go around."""
    return packed_case(257, 330, 140, 5, 8, rows, 1 + shape, plan=(shape, 2), gpu=(2, 0), seed=7)


SMALL_SHAPES = "X(64, 128, 4) X(64, 64, 5)"


@pytest.mark.slow
def test_products_under_the_address_sanitizer():
    """Under the thread sanitizer: see test_every_barrier_is_needed."""
    binary = compile_driver(DRIVER, "address", with_shapes(SMALL_SHAPES))
    given = [small_case(0, 128), small_case(1, 64)]
    for case, y in zip(given, answers(binary, given), strict=True):
        require_exact(case, y)


# ---- every barrier is needed --------------------------------------------------------------------

PARTS = ("packed.cuh", "pack_x.cuh", "packed_y.cuh")
ORDER = (
    r"\b(?:\w+\.)?(?:__syncthreads|sync_threads_of|__syncwarp|copy_async_commit|fence_for_wgmma|"
    r"wgmma_begin|wgmma_commit|wgmma_wait_but<1>|wgmma_wait|mbarrier_wait|mbarrier_arrive|"
    r"copy_async_wait<[^>]*>)\([^;{}]*\);"
)


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer finds nothing, and without any one of the barriers it does."""
    headers, places = with_switched_barriers([f"cuda/nm_gather/{part}" for part in PARTS], ORDER)
    assert len(places) >= 15
    binary = compile_driver(DRIVER, "thread", headers | with_shapes(SMALL_SHAPES))
    (y,) = answers(binary, [small_case(1, 64)])
    require_exact(small_case(1, 64), y)
    given = [replace(small_case(0, 128), seed=seed) for seed in SEEDS]

    def require_all_exact(written: bytes) -> None:
        for case, y in zip(given, split(written, given), strict=True):
            require_exact(case, y)

    def caught(without: int) -> bool:
        ran = run(binary, given, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert not caught(-1)
    survivors = [place for number, place in enumerate(places) if not caught(number)]
    assert survivors == []
