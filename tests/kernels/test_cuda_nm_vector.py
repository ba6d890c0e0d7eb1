# SPDX-License-Identifier: Apache-2.0
"""The kernels that unpack and validate nm_vector, run by the emulator, against the CPU's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import (
    EACH_BUILD,
    RACE_EXIT_CODE,
    SEEDS,
    run_without_each_barrier,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashsparse_plugin.formats.pattern.options import (
    VECTOR_LENGTHS,
    PatternOptions,
    pack_positions,
)
from flashsparse_plugin.formats.values.types import GROUPS, join_nibbles, scale_count, scale_dtype
from flashsparse_plugin.ops import ops

UNPACK, VALIDATE = "nm_vector/unpack_driver", "nm_vector/validate_driver"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # as common/dtype.h numbers them
TYPES = ("native", "fp8_e4m3", "int8", "int4")  # as formats/value_type.h does
NOTHING_BROKEN, NAN_FOUND = 2**63 - 1, -1  # cuda/nm_vector/verdict.h


@dataclass(frozen=True)
class Case:
    """Tensors of nm_vector, of any origin."""

    values: Tensor
    index: Tensor
    scales: Tensor | None
    shape: tuple[int, int]
    dtype: torch.dtype
    options: PatternOptions
    seed: int = 0
    blocks: int = 0  # of validation; 0: as many as are planned

    def encode(self) -> bytes:
        options, scales = self.options, self.scales
        header = [*self.shape, *options.numbers, TYPES.index(options.values), self.values.nbytes]
        header += [0 if scales is None else scales.itemsize, options.group or 0]
        header += [DTYPES.index(self.dtype), self.seed, self.blocks]
        tensors = [self.values, self.index, *([] if scales is None else [scales])]
        fed = b"".join(each.view(torch.uint8).numpy().tobytes() for each in tensors)
        return np.array(header, dtype=np.int64).tobytes() + fed

    def unpacked(self) -> Tensor:
        """What the CPU makes of it, as bits."""
        options = self.options
        return ops.nm_vector_unpack(
            self.values, self.index, *self.shape, *options.numbers, self.dtype, self.scales,
            options.values, options.group or 0,
        ).view(_bits(self.dtype))  # fmt: skip

    def verdict(self) -> tuple[int | None, int]:
        """What the CPU says: the nonzeros, None where there are faults, and the first fault."""
        options = self.options
        try:
            found = ops.nm_vector_validate(
                self.values, self.index, *self.shape, *options.numbers, options.values
            )
        except RuntimeError as error:
            place = re.search(r"rows? (\d+).*columns (\d+) to", str(error))
            if place is None:
                assert "a code that is NaN" in str(error)
                return None, NAN_FOUND
            group, window = int(place[1]) // options.vector_length, int(place[2]) // options.m
            return None, group * -(-self.shape[1] // options.m) + window
        return int(found), NOTHING_BROKEN


def _bits(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype == torch.float32 else torch.int16


def random_case(shape: tuple[int, int], options: PatternOptions, number: int) -> Case:
    """Sound tensors with any bits: of native values NaN too, of codes every one."""
    (rows, columns), dtype, values = shape, DTYPES[number % 3], options.value_type
    generator = torch.Generator().manual_seed(number)
    kept, groups = options.kept(columns), options.groups(rows)
    order = torch.rand(groups, kept // options.n, options.m, generator=generator)
    positions = order.topk(options.n).indices.sort().values
    places = positions + torch.arange(kept // options.n)[:, None] * options.m
    beyond = (places.view(groups, -1) >= columns).repeat_interleave(options.vector_length, 0)[:rows]
    beyond |= torch.rand(rows, kept, generator=generator) < 0.2
    index = pack_positions(positions.view(groups, -1).to(torch.uint8), options.index_bits)
    if values is None:
        width = 8 * dtype.itemsize
        bits = torch.randint(
            -(2 ** (width - 1)), 2 ** (width - 1), (rows, kept), generator=generator
        )
        stored = bits.masked_fill(beyond, 0).to(_bits(dtype))
        return Case(stored, index, None, shape, dtype, options, SEEDS[number % 3])
    codes = torch.randint(2**values.bits, (rows, kept), generator=generator, dtype=torch.uint8)
    if values.name == "fp8_e4m3":
        codes[codes & 127 == 127] = 5  # no NaN
    codes = codes.masked_fill(beyond, 0)
    if values.bits == 4:
        codes = join_nibbles(torch.nn.functional.pad(codes, (0, kept % 2), value=number % 16))
    of_row = (rows, scale_count(columns, options.group))
    scales = torch.rand(of_row, generator=generator).to(scale_dtype(dtype, options.group)) / 64
    return Case(codes, index, scales, shape, dtype, options, SEEDS[number % 3])


def damaged(case: Case, number: int) -> Case:
    """A few bytes of the index, or values of the last columns, or a code, are something else."""
    generator = torch.Generator().manual_seed(number)
    index, values = case.index.clone(), case.values.clone()
    if number % 3 == 0:
        values[int(torch.randint(len(values), (1,), generator=generator)), -1] = 127
    else:
        for _ in range(number % 3):
            where = torch.randint(index.numel(), (1,), generator=generator)
            index.view(-1)[where] = torch.randint(256, (1,), generator=generator).to(torch.uint8)
    return replace(case, index=index, values=values, blocks=number % 4)


def garbage(case: Case, number: int) -> Case:
    """The same sizes, filled with anything."""
    generator = torch.Generator().manual_seed(number)
    filled = [
        torch.randint(256, (each.nbytes,), generator=generator, dtype=torch.uint8)
        .view(each.dtype).view(each.shape)
        for each in (case.values, case.index, case.values if case.scales is None else case.scales)
    ]  # fmt: skip
    scales = None if case.scales is None else filled[2]
    return replace(case, values=filled[0], index=filled[1], scales=scales)


def run(binary: Path, cases: Sequence[Case], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(binary)], input=b"".join(case.encode() for case in cases), capture_output=True,
        timeout=300, env=os.environ | environment,
    )  # fmt: skip


def require_unpacked(binary: Path, cases: Sequence[Case]) -> None:
    ran, at = run(binary, cases), 0
    assert ran.returncode == 0, ran.stderr.decode()
    for case in cases:
        size = case.shape[0] * case.shape[1] * case.dtype.itemsize
        made = torch.frombuffer(bytearray(ran.stdout[at : at + size]), dtype=_bits(case.dtype))
        assert torch.equal(made.view(case.shape), case.unpacked()), (case.shape, case.options.title)
        at += size
    assert at == len(ran.stdout)


def require_judged(binary: Path, cases: Sequence[Case]) -> None:
    ran = run(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()
    found = np.frombuffer(ran.stdout, dtype=np.int64).reshape(len(cases), 2).tolist()
    for case, (nonzeros, broken) in zip(cases, found, strict=True):
        wanted, fault = case.verdict()
        told = (case.shape, case.options.title, case.dtype)
        assert broken == fault, told
        assert wanted is None or nonzeros == wanted, told


# Positions of every number of bits; windows that end inside a word, a byte and eight entries, and
# that are wider than the weight; several tiles of either kind; rows that 16 bytes divide, and not.
PATTERNS = [(2, 4), (1, 2), (1, 1), (3, 7), (5, 12), (8, 32), (13, 50), (63, 127), (32, 128),
            (200, 256), (1, 256), (4, 4)]  # fmt: skip
SHAPES = [(1, 1), (33, 1104), (130, 260), (7, 95), (37, 2050), (16, 2064), (20, 1101)]


def planned_cases() -> list[Case]:
    cases = []
    for number, (n, m) in enumerate(PATTERNS * 4):
        group = GROUPS[number % 3]
        options = PatternOptions(
            n=n, m=m, vector_length=VECTOR_LENGTHS[number * 3 % 8],
            values=TYPES[number * 5 // len(PATTERNS) % 4],
            group=None if number % 2 or group % m or not number * 5 // len(PATTERNS) % 4 else group,
        )  # fmt: skip
        cases.append(random_case(SHAPES[number % len(SHAPES)], options, number))
    return cases


@pytest.mark.parametrize("build", EACH_BUILD)
def test_every_kind_of_pattern_and_value(driver, build):
    cases = planned_cases()
    assert {case.options.values for case in cases if case.options.group} == set(TYPES[1:])
    require_unpacked(driver(UNPACK, build), cases)
    broken = [damaged(case, number) for number, case in enumerate(cases)]
    assert sum(case.verdict()[0] is None for case in broken) > len(cases) / 2
    require_judged(driver(VALIDATE, build), [*cases, *broken])


# The programs are compiled once for the session, whatever the example.
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 140), st.integers(1, 600)),
    m=st.integers(1, 256), part=st.floats(0, 1), length=st.sampled_from(VECTOR_LENGTHS),
    values=st.sampled_from(TYPES), number=st.integers(0, 99),
)  # fmt: skip
def test_any_pattern_and_shape(driver, shape, m, part, length, values, number):
    options = PatternOptions(n=max(1, round(part * m)), m=m, vector_length=length, values=values)
    case = random_case(shape, options, number)
    require_unpacked(driver(UNPACK, "plain"), [case])
    require_judged(driver(VALIDATE, "plain"), [case, *(damaged(case, k) for k in range(6))])


def test_schedules_give_the_same(driver):
    cases = [random_case((70, 1300), PatternOptions(n=2, m=4, vector_length=4), 1)]
    cases += [random_case((70, 304), PatternOptions(n=8, m=32, values="int4", group=64), 2)]
    cases = [replace(case, seed=seed, blocks=2) for case in cases for seed in SEEDS]
    require_unpacked(driver(UNPACK, "plain"), cases)
    require_judged(driver(VALIDATE, "plain"), cases)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 4), (3, 8), (4, 7), (9, 20), (2, 130)])
def test_each_wrong_position_is_found_in_its_window(driver, n, m):
    """Of one group, every entry in turn: too far, as the one before, or lower than that."""
    options, cases = PatternOptions(n=n, m=m), []
    case = random_case((1, 3 * m), options, 4)
    kept, bits = options.kept(3 * m), options.index_bits
    positions = torch.arange(n).repeat(3).to(torch.uint8)[None]
    for entry in range(kept):
        for wrong in {m, 2**bits - 1, entry % n - 1, 0} & set(range(2**bits)):
            changed = positions.clone()
            changed[0, entry] = wrong
            cases.append(replace(case, index=pack_positions(changed, bits)))
    require_judged(driver(VALIDATE, "plain"), cases)


@pytest.mark.slow
def test_garbage_stays_in_bounds(driver):
    cases = [garbage(case, number) for number, case in enumerate(planned_cases())]
    ran = run(driver(UNPACK, "address"), cases)
    assert ran.returncode == 0, ran.stderr.decode()
    require_judged(driver(VALIDATE, "address"), cases)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(UNPACK, 4), (VALIDATE, 1)])
def test_every_barrier_is_needed(name, count):
    cases = [random_case((40, 700), PatternOptions(n=2, m=4, vector_length=8), 2)]
    mutants = run_without_each_barrier(
        name, lambda binary, **without: run(binary, cases, **without)
    )
    assert len(mutants) == count
    for place, ran in mutants.items():
        assert ran.returncode == RACE_EXIT_CODE and b"data race" in ran.stderr, place
