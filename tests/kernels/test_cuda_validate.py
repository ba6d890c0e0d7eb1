# SPDX-License-Identifier: Apache-2.0
"""The CUDA validator's own source, run on the CPU by the emulator, against the CPU's validator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import weights as strategies
from emulation import (
    EACH_BUILD,
    RACE_EXIT_CODE,
    SEEDS,
    run_packed_cases,
    run_without_each_barrier,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_weights import (
    SHAPES,
    every_bit_pattern,
    garbage_cases,
    random_weight,
    skewed_weight,
)

from flashsparse_plugin.ops import ops

VALIDATE_KERNEL = "cuda/tiled_csl/validate.cuh"
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
BAD_OFFSETS, POINTS_OUTSIDE, TWO_VALUES = -1, -2, -3  # verdict.h
RULES = {
    BAD_OFFSETS: "tile_offsets",
    POINTS_OUTSIDE: "points outside its tile",
    TWO_VALUES: "gives a second value",
}


def verdicts(binary: Path, cases) -> list[np.ndarray]:
    """Nonzeros of each tile of the cases, or what the tile breaks."""
    ran = run_packed_cases(binary, cases, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    sizes = [len(offsets) - 1 for _, offsets, *_ in cases]
    return np.split(np.frombuffer(ran.stdout, dtype=np.int32), np.cumsum(sizes)[:-1])


def packed(weight: torch.Tensor, seed: int = 0):
    return (*ops.tiled_csl_pack(weight), tuple(weight.shape), seed)


def assert_judges_as_the_cpu(binary: Path, cases) -> None:
    """The same nonzeros where tensors are sound; where they are not, a rule that is broken."""
    for (words, offsets, shape, _), found in zip(cases, verdicts(binary, cases), strict=True):
        try:
            nonzeros = int(ops.tiled_csl_validate(words, offsets, *shape))
        except RuntimeError as error:
            assert found.min() < 0, error
            first = BAD_OFFSETS if BAD_OFFSETS in found else int(found[found < 0][0])
            # In a tile that breaks both rules about words, the CPU names the word that comes first.
            accepted = [RULES[first]] + ([RULES[TWO_VALUES]] if first == POINTS_OUTSIDE else [])
            assert any(rule in str(error) for rule in accepted), (first, error)
            # The op says what the CPU says of the first tile that the kernel finds.
            tile = int(np.argmax(found < 0))
            assert first == BAD_OFFSETS or f" of tile {tile} " in str(error), (tile, error)
        else:
            assert found.min() >= 0 and found.sum() == nonzeros


def sound_cases() -> list:
    weights = [
        random_weight(shape, sparsity, (BFLOAT16, FLOAT16)[number % 2], number)
        for number, shape in enumerate(SHAPES)
        for sparsity in (0.0, 0.5, 0.9, 1.0)
    ]
    weights += [skewed_weight((300, 257), FLOAT16, 1), every_bit_pattern((150, 131), BFLOAT16, 2)]
    cases = [packed(weight, seed) for weight in weights for seed in SEEDS]
    # What no packer of ours writes, and is sound all the same: any order, repeats, zeros as words.
    words, *_ = ops.tiled_csl_pack(random_weight((128, 64), 0.7, BFLOAT16, 4))
    free = sorted(set(range(128 * 64)) - set((words.long() & 0xFFFF).tolist()))
    zeros = torch.tensor(free[:3], dtype=torch.int32) | torch.tensor([0, -(2**31), 0]).int()
    many = torch.cat([words.repeat(5), zeros, zeros[:1]])
    many = many[torch.randperm(len(many), generator=torch.Generator().manual_seed(5))]
    return [*cases, (many, torch.tensor([0, len(many)], dtype=torch.int32), (128, 64), 0)]


def damaged_cases() -> list:
    shape = (300, 200)
    words, offsets, *_ = packed(random_weight(shape, 0.7, BFLOAT16, 4))
    damages = [
        lambda w, o: o[0].fill_(4),
        lambda w, o: o[2].fill_(-8),
        lambda w, o: o[2].fill_(2**31 - 4),
        lambda w, o: o[3].add_(2),
        lambda w, o: o[-1].add_(4),
        lambda w, o: o[-1].sub_(4),
        lambda w, o: o.zero_(),
        lambda w, o: w[9].bitwise_or_(0x8000),
        lambda w, o: w[9].bitwise_or_(0x2000),
        lambda w, o: w[5].copy_(w[4] ^ (1 << 20)),
        lambda w, o: w[3 + o[4]].copy_(w[200 + o[4]] ^ (1 << 31)),  # +x and -x
        lambda w, o: w[-1].fill_((1 << 16) | 8100),  # the last tile has 44 rows and 8 columns
        lambda w, o: w[-1].fill_(8100),  # a zero
        lambda w, o: w[-1].fill_((1 << 16) | 9),  # a row that it has, and a column that it has not
    ]
    cases = []
    for damage in damages:
        broken = words.clone(), offsets.clone()
        damage(*broken)
        with pytest.raises(RuntimeError):
            ops.tiled_csl_validate(*broken, *shape)
        cases += [(*broken, shape, seed) for seed in SEEDS]
    return cases


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
def test_sound_tensors_of_any_shape_and_density(driver, sanitizer):
    assert_judges_as_the_cpu(driver("tiled_csl/validate_driver", sanitizer), sound_cases())


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
def test_each_broken_rule_is_found(driver, sanitizer):
    assert_judges_as_the_cpu(driver("tiled_csl/validate_driver", sanitizer), damaged_cases())


# The programs are compiled once for the session, whatever the example.
@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weight=strategies.weights(), seed=st.integers(0, 9), data=st.data())
def test_any_damage(driver, weight, seed, data):
    words, offsets, shape, _ = packed(weight)
    for tensor in (words, offsets):
        for _ in range(data.draw(st.integers(0, 2)) if len(tensor) else 0):
            place = data.draw(st.integers(0, len(tensor) - 1))
            tensor[place] ^= 1 << data.draw(st.integers(0, 30))
    assert_judges_as_the_cpu(
        driver("tiled_csl/validate_driver", "address"), [(words, offsets, shape, seed)]
    )


@pytest.mark.slow
def test_garbage_stays_in_bounds(driver):
    assert_judges_as_the_cpu(driver("tiled_csl/validate_driver", "address"), garbage_cases())


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer reports a race for each `__syncthreads` that is taken away."""
    shape = (128, 64)
    words, offsets, *_ = packed(random_weight(shape, 0.5, BFLOAT16, 4))
    words[5] = words[4] ^ (1 << 20)
    cases = [(words, offsets, shape, 7)]
    mutants = run_without_each_barrier(
        "tiled_csl/validate_driver",
        lambda binary, **without: run_packed_cases(binary, cases, timeout=300, **without),
    )
    assert len(mutants) == 3
    for ran in mutants.values():
        assert ran.returncode == RACE_EXIT_CODE
        assert b"data race" in ran.stderr
        assert VALIDATE_KERNEL.encode() in ran.stderr  # names the line of the kernel
