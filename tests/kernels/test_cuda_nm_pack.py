# SPDX-License-Identifier: Apache-2.0
"""nm_vector's CUDA packer, its own source, run on the CPU by the emulator, against the CPU's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from emulation import EACH_BUILD, RACE_EXIT_CODE, SEEDS, run_without_each_barrier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_weights import every_bit_pattern
from torch import Tensor

from flashsparse_plugin.formats.pattern.options import VECTOR_LENGTHS, PatternOptions
from flashsparse_plugin.ops import ops

DRIVER = "nm_vector/pack_driver"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BITS = {2: torch.int16, 4: torch.int32}


class Case(NamedTuple):
    weight: Tensor
    n: int
    m: int
    vector_length: int
    seed: int = 0
    shift: int = 0  # elements past an aligned place

    @property
    def pattern(self) -> PatternOptions:
        return PatternOptions(n=self.n, m=self.m, vector_length=self.vector_length)


class Answer(NamedTuple):
    breach: list[int]  # group, window, columns with nonzeros; -1 where there is none
    values: Tensor
    index: Tensor


def run(binary: Path, cases: list[Case], **environment: str) -> subprocess.CompletedProcess:
    fed = bytearray()
    for weight, n, m, length, seed, shift in cases:
        size = weight.itemsize
        fed += np.array([*weight.shape, n, m, length, size, shift, seed], dtype=np.int64).tobytes()
        fed += weight.contiguous().view(BITS[size]).numpy().tobytes()
    return subprocess.run(
        [str(binary)], input=bytes(fed), capture_output=True, timeout=300,
        env=os.environ | environment,
    )  # fmt: skip


def pack(binary: Path, cases: list[Case]) -> list[Answer]:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()
    answers, at = [], 0

    def take(dtype: torch.dtype, *shape: int) -> Tensor:
        nonlocal at
        begin, at = at, at + dtype.itemsize * shape[0] * (shape[1] if len(shape) > 1 else 1)
        return torch.frombuffer(bytearray(ran.stdout[begin:at]), dtype=dtype).view(shape)

    for case in cases:
        (rows, columns), pattern = case.weight.shape, case.pattern
        answers.append(
            Answer(
                take(torch.int64, 3).tolist(),
                take(BITS[case.weight.itemsize], rows, pattern.kept(columns)),
                take(torch.uint8, pattern.groups(rows), pattern.index_bytes(columns)),
            )
        )
    assert at == len(ran.stdout)
    return answers


def require_all(binary: Path, cases: list[Case]) -> None:
    """The bytes that the CPU's packer makes."""
    for case, made in zip(cases, pack(binary, cases), strict=True):
        values, index = ops.nm_vector_pack(case.weight, *case.pattern.numbers)
        told = (tuple(case.weight.shape), case.pattern.title)
        assert made.breach == [-1, -1, -1], told
        assert torch.equal(made.values, values) and torch.equal(made.index, index), told


def pruned(shape: tuple[int, int], n: int, m: int, length: int, number: int) -> Case:
    """A weight of any bit patterns that keeps up to n, and has zeros of both signs."""
    dtype = DTYPES[number % 3]
    pattern = PatternOptions(n=n, m=m, vector_length=length)
    generator = torch.Generator().manual_seed(number)
    kept = pattern.keep_largest(torch.rand(shape, generator=generator) + 0.5) != 0
    kept &= torch.rand(shape, generator=generator) < (0.9, 0.2)[number // 3 % 2]
    if dtype == torch.float32:
        low, high = -(2**31), 2**31
        bits = torch.randint(low, high, shape, generator=generator).to(torch.int32)
        weight = bits.view(dtype)
    else:
        weight = every_bit_pattern(shape, dtype, number)
    zeros = torch.where(torch.rand(shape, generator=generator) < 0.5, 0.0, -0.0).to(dtype)
    return Case(torch.where(kept, weight, zeros), n, m, length, SEEDS[number % 3], number % 4)


# Positions of every number of bits; windows that end inside a word and a byte, and that are wider
# than the weight; several tiles of either kind.
PATTERNS = [(2, 4), (1, 2), (1, 1), (3, 7), (5, 12), (8, 32), (13, 50), (63, 127), (32, 128),
            (200, 256), (1, 256), (4, 4)]  # fmt: skip
SHAPES = [(1, 1), (33, 1100), (130, 260), (7, 95), (257, 130), (16, 2050)]


def planned_cases() -> list[Case]:
    return [
        pruned(SHAPES[number % len(SHAPES)], *pattern, VECTOR_LENGTHS[number * 3 % 8], number)
        for number, pattern in enumerate(PATTERNS * 2)
    ]


@pytest.mark.parametrize("build", EACH_BUILD)
def test_every_kind_of_pattern_bit_for_bit(driver, build):
    require_all(driver(DRIVER, build), planned_cases())


# The program is compiled once for the session, whatever the example.
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 140), st.integers(1, 600)),
    m=st.integers(1, 256), part=st.floats(0, 1), length=st.sampled_from(VECTOR_LENGTHS),
    number=st.integers(0, 99),
)  # fmt: skip
def test_any_pattern_and_shape(driver, shape, m, part, length, number):
    n = max(1, round(part * m))
    require_all(driver(DRIVER, "plain"), [pruned(shape, n, m, length, number)])


def test_schedules_give_the_same_bytes(driver):
    cases = [pruned((70, 1300), 2, 4, 4, 1), pruned((70, 300), 8, 32, 32, 2)]
    cases += [case._replace(seed=seed) for case in cases for seed in SEEDS]
    require_all(driver(DRIVER, "plain"), cases)


@pytest.mark.parametrize("build", EACH_BUILD)
def test_the_first_block_that_breaks_the_pattern_is_found(driver, build):
    """Of several: that of the first group, and there of the first window."""
    cases, wanted = [], []
    for seed, (n, m, length), places in (
        (0, (2, 4, 1), [(69, 4), (70, 1028), (70, 8)]),
        (1, (2, 4, 1), [(300, 1300), (299, 1299)]),
        (7, (1, 32, 32), [(90, 1290), (65, 1250)]),
        (0, (100, 256, 64), [(127, 700)]),
    ):
        weight = torch.zeros(301, 1301, dtype=torch.bfloat16)
        for row, column in places:
            first = column // m * m
            weight[row, first : first + n + 1] = -1.0
        cases.append(Case(weight, n, m, length, seed))
        group, window = min((row // length, column // m) for row, column in places)
        wanted.append([group, window, n + 1])
    made = pack(driver(DRIVER, build), cases)
    assert [answer.breach for answer in made] == wanted
    for case, (group, window, _) in zip(cases, wanted, strict=True):
        columns = f"columns {window * case.m} to {min(window * case.m + case.m, 1301) - 1}: "
        with pytest.raises(RuntimeError, match=columns):
            ops.nm_vector_pack(case.weight, *case.pattern.numbers)
        assert group == case.weight.nonzero()[0, 0] // case.vector_length


@pytest.mark.slow
def test_every_barrier_is_needed():
    cases = [pruned((40, 700), 2, 4, 8, 2), pruned((40, 700), 8, 32, 32, 2)]
    mutants = run_without_each_barrier(
        DRIVER, lambda binary, **without: run(binary, cases, **without)
    )
    assert len(mutants) == 2
    for ran in mutants.values():
        assert ran.returncode == RACE_EXIT_CODE and b"data race" in ran.stderr
