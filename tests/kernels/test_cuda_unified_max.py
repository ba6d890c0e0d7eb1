# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel of decode attention, its own source, run by the emulator, against float64."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest
import torch
from emulated_decode import Decode, answers, fp8, random_decode, require_exact, run, split
from emulation import (
    KERNELS,
    SANITIZED,
    SEEDS,
    UNTIL_A_RACE,
    compile_driver,
    is_caught,
    with_switched_barriers,
)

from flashsparse_plugin.attention.calibration import LayerScores, finding
from flashsparse_plugin.ops import attention_reference

KERNEL, PLAN = "cuda/attention/unified_max_decode.cuh", "cuda/attention/unified_max_plan.h"
HEAD_DIMS = (64, 80, 96, 128, 256)
# Under sanitizers: every lane copies, or some have nothing to copy; 8 heads or 16.
SMALL_SHAPES = ("64, 1", "80, 1", "64, 2")
GROUPS = (1, 5, 8, 12, 17)  # MHA, GQA: less than 8 heads, 8, less than 16, and two blocks of heads
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def phi_of(case: Decode, value: float = 0.0) -> torch.Tensor:
    return torch.full((case.query.shape[1],), value)


def some_mask(sequences: int, positions: int, seed: int = 0) -> torch.Tensor:
    """Padding on the left, whole tiles of it and parts, and holes."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(sequences, positions, generator=generator) < 0.9
    for sequence in range(sequences):
        mask[sequence, : 37 * sequence] = False
    return mask


def sinks_of(case: Decode) -> torch.Tensor:
    """From far below the scores to far above them."""
    return torch.linspace(-30.0, 30.0, case.query.shape[1])


def shapes() -> list[Decode]:
    """Every head dim and group, contiguous and paged in either layout, everything else by turns."""
    numbers, cases = count(), []
    for head_dim, group in product(HEAD_DIMS, GROUPS):
        number = next(numbers)
        lengths = int32(600, 0, 1 + 97 * number % 599)
        case = random_decode(
            3, 2, group, head_dim, 600, number,
            lengths=lengths, window=(0, 40, 300)[number % 3], softcap=(0.0, 2.5)[number // 2 % 2],
            page=(0, 16, 48)[number % 3], nhd=number % 4 == 0,
            splits=1 + number % 3, warps=1 + number % 4,
        )  # fmt: skip
        if not case.page and number % 2:
            case = replace(case, mask=some_mask(3, 600, number))
        if number % 2:
            case = replace(case, sinks=sinks_of(case))
        cases.append(replace(case, phi=phi_of(case)) if number // 3 % 2 else case)
    return cases


def lengths() -> list[Decode]:
    """Empty, of one token, around the edges of tiles and splits, with and without phi."""
    cases = []
    for number, splits in enumerate((1, 2, 5)):
        case = random_decode(
            9, 1, 3, 64, 1041, number, page=(0, 16)[number % 2], splits=splits,
            lengths=int32(0, 1, 15, 16, 17, 255, 256, 257, 1041),
        )  # fmt: skip
        cases += [case, replace(case, phi=phi_of(case), sinks=sinks_of(case))]
    return cases


def masks() -> list[Decode]:
    """Left padding, holes, a row that is masked altogether, a mask beside lengths and a window."""
    mask = some_mask(4, 333)
    mask[3] = False
    cases = [
        random_decode(4, 1, 8, 64, 333, 3, mask=mask),
        random_decode(4, 1, 8, 64, 333, 4, mask=mask, lengths=int32(333, 40, 200, 333), window=90),
    ]
    return cases + [replace(case, phi=phi_of(case)) for case in cases]


def huge_scores() -> list[Decode]:
    """Scores of some hundreds: phi is wrong nearly everywhere, and the result is right."""
    cases = [
        random_decode(1, 2, 4, 64, 400, number, spread=spread, splits=2, dtype=dtype)
        for number, (dtype, spread) in enumerate(product((FLOAT16, BFLOAT16), (40.0, 150.0)))
    ]
    sinks = [replace(case, sinks=sinks_of(case)) for case in cases[:2]]
    return cases + sinks + [replace(case, phi=phi_of(case)) for case in cases + sinks]


def codes() -> list[Decode]:
    """An fp8 cache: every head dim, and a warp of 8 heads and of 16, everything else by turns."""
    cases = []
    for number, (head_dim, group) in enumerate(product(HEAD_DIMS, (3, 12))):
        case = random_decode(
            2, 2, group, head_dim, 300, number + 1,
            lengths=int32(300, 20 + 9 * number), window=(0, 40)[number % 2],
            softcap=(0.0, 2.5)[number // 2 % 2], page=(0, 16, 48)[number % 3],
            nhd=number % 4 == 0, splits=1 + number % 2, warps=1 + number % 4,
        )  # fmt: skip
        case = replace(fp8(case), sinks=sinks_of(case) if number % 3 else None)
        cases.append(replace(case, phi=phi_of(case)) if number % 5 < 3 else case)
    return cases


MATRIX = {
    "shapes": shapes,
    "codes": codes,
    "lengths": lengths,
    "masks": masks,
    "huge scores": huge_scores,
}


# What orders memory, or waits for it.
ORDER = r"\b(?:__syncthreads|__syncwarp|copy_async_commit|copy_async_wait<[^>]*>)\([^;{}]*\);"
BARRIERS = 10


@pytest.fixture(scope="module")
def small_driver():
    """small_driver(sanitizer): for SMALL_SHAPES, soon compiled; WITHOUT leaves a barrier out."""
    headers, places = with_switched_barriers([KERNEL, "cuda/shared/partial_sums.cuh"], ORDER)
    assert len(places) == BARRIERS
    shapes = " ".join(f"X({shape})" for shape in SMALL_SHAPES)
    plan, replaced = re.subn(
        r"(#define FS_DECODE_SHAPES\(X\)) \\\n.*",
        lambda m: f"{m[1]} {shapes}",
        (KERNELS / PLAN).read_text(),
    )
    assert replaced == 1
    return lambda sanitizer: compile_driver("decode_driver", sanitizer, headers | {PLAN: plan})


def assert_exact(binary: Path, cases: list[Decode]) -> None:
    """Every case is right, and has the same bits on every schedule."""
    expected = answers(binary, [replace(case, seed=SEEDS[0]) for case in cases])
    for case, (out, _) in zip(cases, expected, strict=True):
        require_exact(case, out)
    for seed in SEEDS[1:]:
        again = answers(binary, [replace(case, seed=seed) for case in cases])
        for case, (out, redone), (same, as_often) in zip(cases, again, expected, strict=True):
            assert torch.equal(out.view(torch.int16), same.view(torch.int16)), f"{case}, not {seed}"
            assert torch.equal(redone, as_often), f"{case}, not {seed}"


@pytest.mark.parametrize(
    "cases",
    [pytest.param(name, marks=pytest.mark.slow) if name == "shapes" else name for name in MATRIX],
)
def test_decode(driver, cases):
    assert_exact(driver("decode_driver", "plain"), MATRIX[cases]())


@pytest.mark.slow
def test_a_hundred_thousand_positions(driver):
    """In 32 splits, as many as there are, and as 33 multiprocessors would get."""
    case = random_decode(
        1, 1, 2, 64, 100_003, splits=0, warps=33, page=256, dtype=BFLOAT16
    )  # fmt: skip
    for phi in (None, phi_of(case)):
        assert not counted(driver("decode_driver", "plain"), replace(case, phi=phi)).any()


# ---- the guard ----------------------------------------------------------------------------------


def counted(binary: Path, case: Decode) -> torch.Tensor:
    ((out, redone),) = answers(binary, [case])
    require_exact(case, out)
    return redone


def test_only_the_head_that_overflows_is_counted(driver):
    binary = driver("decode_driver", "plain")
    for dtype, factor in ((FLOAT16, 18.0), (BFLOAT16, 200.0)):
        case = random_decode(2, 2, 4, 64, 300, 1, dtype=dtype, splits=2)
        case.phi = phi_of(case)
        assert not counted(binary, case).any()
        case.query[1, 3] *= factor
        redone = counted(binary, case)
        assert redone[1, 3] > 0 and redone.count_nonzero() == 1, redone


@pytest.mark.parametrize("value", [80.0, -80.0, float("inf"), float("-inf"), float("nan")])
def test_a_useless_phi_is_noticed_everywhere(driver, value):
    """Every part of every head is done again, once: 3 warps have tiles in the second split."""
    for dtype in (FLOAT16, BFLOAT16):
        case = random_decode(1, 2, 4, 64, 19 * 16, 2, splits=2, dtype=dtype)
        redone = counted(driver("decode_driver", "plain"), replace(case, phi=phi_of(case, value)))
        assert (redone == 4 + 3).all(), redone


def test_a_phi_that_fits_is_never_wrong(driver):
    """Even where it is far from every score, as bfloat16 allows; and without phi nothing counts."""
    binary = driver("decode_driver", "plain")
    case = random_decode(2, 2, 4, 64, 300, 1, dtype=BFLOAT16, splits=2)
    assert not counted(binary, case).any()
    for value in (-20.0, 20.0):
        assert not counted(binary, replace(case, phi=phi_of(case, value))).any()


def test_what_calibration_expects_is_what_the_kernel_counts(driver):
    """Its parts are the kernel's, and of all phi its own has the fewest computed again."""
    for dtype, spread in ((FLOAT16, 6.0), (BFLOAT16, 30.0)):
        case = random_decode(
            4, 1, 8, 64, 600, 3, dtype=dtype, spread=spread,
            lengths=int32(600, 257, 64, 5), splits=3, warps=8,
        )  # fmt: skip
        scores = attention_reference.scores(case.query, case.key, case.lengths, scale=case.scale)
        seen = LayerScores(8)
        seen.add(0, scores.transpose(0, 1).float())
        parts = 8 * (8 + 8 + 6 + 8 + 1 + 4 + 1)
        assert seen.sums.counts.sum() == parts
        reference = finding(seen, str(dtype).removeprefix("torch.")).reference
        expected = round(reference.recomputed * parts)
        phi = torch.tensor(reference.phi)
        counts = [
            int(counted(driver("decode_driver", "plain"), replace(case, phi=phi + shift)).sum())
            for shift in (-3.0, 0.0, 3.0)
        ]
        assert 0 < counts[1] <= expected <= counts[1] + 3
        assert min(counts) == counts[1]


def test_infinity_and_nan_are_not_hidden(driver):
    binary = driver("decode_driver", "plain")
    cases = []
    for value in (torch.inf, torch.nan):
        case = random_decode(2, 1, 8, 64, 300, 1, splits=2)
        case.key[1, 0, 77, 3] = value
        cases += [case, replace(case, phi=phi_of(case))]
    for case, (out, _) in zip(cases, answers(binary, cases), strict=True):
        healthy = replace(case, query=case.query[:1], key=case.key[:1], value=case.value[:1])
        require_exact(healthy, out[:1])
        scores = case.query[1].double() @ case.key[1, 0, 77].double()
        assert not out[1][~scores.lt(0)].isfinite().any()  # -inf is a score like any other


@pytest.mark.slow
def test_lengths_and_tables_of_nonsense_stay_in_bounds(small_driver):
    """Whatever the device finds in them: a longer length counts for all positions."""
    binary = small_driver("address")
    lengths = int32(-(2**31), -1, 2**31 - 1, 301)
    case = random_decode(4, 1, 8, 64, 300, 1, lengths=lengths)
    ((out, _),) = answers(binary, [case])
    require_exact(case, out)

    class Nonsense(Decode):
        def cache(self):
            key, value, table = super().cache()
            return key, value, torch.full_like(table, -(2**31)).where(table % 2 == 0, table + 1000)

    paged = random_decode(4, 1, 8, 64, 300, 1, lengths=lengths, page=16)
    assert run(binary, [Nonsense(**vars(paged))]).returncode == 0


# ---- under sanitizers ---------------------------------------------------------------------------


def small_cases() -> list[Decode]:
    """Every code path, as small as it may be: both loads, redone tiles, joined splits."""
    cases = []
    for number, (seed, page) in enumerate(product(SEEDS, (0, 16))):
        case = random_decode(
            2, 1, 3, 64, 32 * 16 + 5, number, seed=seed, page=page, splits=2, warps=2,
            lengths=int32(32 * 16 + 5, 19),
        )  # fmt: skip
        if number % 3 == 0:
            case = replace(case, sinks=sinks_of(case))
        if number == 4:
            case = fp8(case)
        cases.append(replace(case, phi=phi_of(case, (0.0, 90.0)[number % 2])))
    return cases


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_decode_under_sanitizers(small_driver, sanitizer):
    cases = small_cases() + [
        random_decode(2, 1, group, dim, 150, number, seed=SEEDS[number % 3], splits=2, warps=3)
        for number, (dim, group) in enumerate([(64, 3), (80, 3), (64, 13), (64, 17)])
    ]
    cases += [fp8(case) for case in cases[-4:]]
    cases += [replace(case, seed=7) for case in masks()]
    for case, (out, _) in zip(cases, answers(small_driver(sanitizer), cases), strict=True):
        require_exact(case, out)


@pytest.mark.slow
def test_every_barrier_is_needed(small_driver):
    binary, cases = small_driver("thread"), small_cases()

    def require_all_exact(written: bytes) -> None:
        for case, (out, _) in zip(cases, split(written, cases), strict=True):
            require_exact(case, out)

    def caught(without: int) -> bool:
        ran = run(binary, cases, TSAN_OPTIONS=UNTIL_A_RACE, WITHOUT=str(without))
        return is_caught(ran, require_all_exact)

    assert [without for without in range(-1, BARRIERS) if caught(without)] == [*range(BARRIERS)]
