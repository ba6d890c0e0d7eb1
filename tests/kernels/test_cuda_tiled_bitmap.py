# SPDX-License-Identifier: Apache-2.0
"""The kernels that pack, unpack and validate tiled_bitmap, run on the CPU by the emulator."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import weights as strategies
from emulation import (
    RACE_EXIT_CODE,
    SANITIZED,
    SEEDS,
    run_packed_cases,
    run_without_each_barrier,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_weights import (
    bits_without_negative_zero,
    every_bit_pattern,
    random_weight,
    skewed_weight,
)

from flashsparse_plugin.ops import ops

PACK, UNPACK, VALIDATE = (f"tiled_bitmap/{op}_driver" for op in ("pack", "unpack", "validate"))
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
# Units are 16 x 256; rows of a multiple of 8 columns are moved 16 bytes at a time.
SHAPES = ((1, 1), (3, 5), (15, 31), (16, 256), (17, 257), (33, 264), (70, 520), (130, 72), (1, 700))
SPARSITIES = (0.0, 0.02, 0.5, 0.8, 0.97, 1.0)
RULES = {  # tiled_bitmap_errors.h
    -1: "unit_offsets",
    -2: "beyond the edges",
    -3: "begin in the same column",
    -4: "ends behind its lines",
}


def adversarial() -> list[torch.Tensor]:
    """Units whose runs are as unequal as they can be, and edges of what must be kept."""
    row = random_weight((16, 256), 0.9, BFLOAT16, 1)
    row[5] = 1.0  # one dense row: 4 lanes have as much as all others
    first, second = torch.zeros(2, 16, 256, dtype=FLOAT16)
    first[:, :128] = 1.5  # all of run 0, and none of run 1
    second[:, 128:] = -2.0
    one_lane = torch.zeros(16, 256, dtype=FLOAT16)
    one_lane[3, 4::8] = torch.inf
    last = torch.zeros(16, 256, dtype=BFLOAT16)
    last[15, 255] = torch.nan
    mixed = random_weight((32, 768), 0.0, BFLOAT16, 2)  # units at 0% beside units at 100%
    mixed[:16, 256:512] = 0
    mixed[16:, :256] = 0
    negative_zeros = torch.full((16, 256), -0.0, dtype=FLOAT16)
    stairs = torch.ones(16, 256, dtype=BFLOAT16).tril().tril(-3) * 3
    return [row, first, second, one_lane, last, mixed, negative_zeros, stairs]


def all_weights() -> list[torch.Tensor]:
    random = [
        random_weight(shape, sparsity, (BFLOAT16, FLOAT16)[number % 2], number)
        for number, shape in enumerate(SHAPES)
        for sparsity in SPARSITIES
    ]
    skewed = [skewed_weight((70, 300), FLOAT16, 1), skewed_weight((33, 512), BFLOAT16, 2)]
    patterns = [every_bit_pattern((33, 264), dtype, 3) for dtype in (BFLOAT16, FLOAT16)]
    return [*random, *skewed, *patterns, *adversarial()]


def units(shape: tuple[int, int]) -> int:
    return -(-shape[0] // 16) * -(-shape[1] // 256)


# ---- pack --------------------------------------------------------------------------------------


def run_pack(binary: Path, cases, **environment: str) -> subprocess.CompletedProcess:
    """Feeds (weight, seed, shift) cases to a driver; `shift`: elements past an aligned place."""
    fed = bytearray()
    for weight, seed, shift in cases:
        fed += np.array([*weight.shape, shift, seed], dtype=np.int64).tobytes()
        fed += weight.contiguous().view(torch.int16).numpy().tobytes()
    return subprocess.run(
        [str(binary)], input=bytes(fed), capture_output=True, timeout=300,
        env=os.environ | environment,
    )  # fmt: skip


def assert_packs_as_the_cpu(binary: Path, cases) -> None:
    ran = run_pack(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()
    numbers, at = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int32).copy()), 0
    for weight, *_ in cases:
        lines, offsets = ops.tiled_bitmap_pack(weight)
        assert numbers[at : at + 2].tolist() == [len(lines), 0], tuple(weight.shape)
        at += 2
        for expected in (offsets, lines):
            made = numbers[at : at + expected.numel()].view(expected.shape)
            assert torch.equal(made, expected), tuple(weight.shape)
            at += expected.numel()
    assert at == len(numbers)


def test_packs_bit_for_bit_as_the_cpu(driver):
    cases = [
        (weight, seed, shift)
        for weight in all_weights()
        for seed, shift in zip(SEEDS, (0, 1, 8), strict=True)
    ]
    assert_packs_as_the_cpu(driver(PACK, "plain"), cases)


# The programs are compiled once for the session, whatever the example.
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weight=strategies.weights(100, 600), seed=st.integers(0, 9), shift=st.integers(0, 3))
def test_packs_any_weight(driver, weight, seed, shift):
    assert_packs_as_the_cpu(driver(PACK, "plain"), [(weight, seed, shift)])


# ---- unpack ------------------------------------------------------------------------------------


def packed(weight: torch.Tensor, seed: int = 0):
    return (*ops.tiled_bitmap_pack(weight), tuple(weight.shape), seed)


def assert_unpacks(binary: Path, weights) -> None:
    cases = [packed(weight, seed) for weight in weights for seed in SEEDS]
    ran = run_packed_cases(binary, cases, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    made = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())
    expected = [bits_without_negative_zero(weight).flatten() for weight in weights for _ in SEEDS]
    assert torch.equal(made, torch.cat(expected))


def test_unpacks_bit_for_bit(driver):
    assert_unpacks(driver(UNPACK, "plain"), all_weights())


# ---- validate ----------------------------------------------------------------------------------


def assert_judges_as_the_cpu(binary: Path, cases) -> None:
    """The same number of values where tensors are sound; where they are not, a broken rule."""
    ran = run_packed_cases(binary, cases, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    verdicts = np.frombuffer(ran.stdout, dtype=np.int32)
    ends = np.cumsum([units(shape) for *_, shape, _ in cases])
    for (lines, offsets, shape, _), found in zip(cases, np.split(verdicts, ends[:-1]), strict=True):
        try:
            values = int(ops.tiled_bitmap_validate(lines, offsets, *shape))
        except RuntimeError as error:
            assert found.min() < 0, error
            first = -1 if -1 in found else int(found[found < 0][0])
            assert RULES[first] in str(error), (first, error)
            unit = int(np.argmax(found < 0))
            assert first == -1 or str(error).startswith(f"unit {unit} "), (unit, error)
        else:
            assert found.min() >= 0 and found.sum() == values


def damaged_cases() -> list:
    """A [40, 600] weight of 3 x 3 units, of which those at the right and below are cut."""
    shape = (40, 600)
    lines, offsets, *_ = packed(random_weight(shape, 0.6, BFLOAT16, 4))
    starts = offsets.long()
    damages = [
        lambda w, o: o[0].fill_(1),
        lambda w, o: o[2].fill_(-8),
        lambda w, o: o[2].fill_(2**31 - 1),
        lambda w, o: o[3].copy_(o[2] + 4),  # a unit without all of its head
        lambda w, o: o[3].copy_(o[2] + 70),
        lambda w, o: o[-1].add_(1),
        lambda w, o: o[-1].sub_(1),
        lambda w, o: o.zero_(),
        lambda w, o: w[starts[2]].view(-1)[2].fill_(-1),  # columns beyond 600
        lambda w, o: w[starts[7]].view(-1)[0].bitwise_or_(1 << 16),  # rows beyond 40
        lambda w, o: w[starts[1] + 4, 3].copy_(w[starts[1] + 4, 4]),  # two runs 0 of a column
        lambda w, o: w[starts[1] + 4, 3].bitwise_xor_(1 << 16),  # two runs 1
        lambda w, o: w[starts[4] + 4, 9].bitwise_or_(1 << 15),  # item 1024
        lambda w, o: w[starts[4] + 4, 9].bitwise_or_(-(2**31)),
        lambda w, o: w[starts[0] + 4].add_(64 << 16),  # runs 1 two items late
        lambda w, o: w[starts[0] : starts[0] + 4].fill_(-1),  # more than there are values
    ]
    cases = []
    for number, damage in enumerate(damages):
        broken = lines.clone(), offsets.clone()
        damage(*broken)
        cases.append((*broken, shape, SEEDS[number % len(SEEDS)]))
    return cases


def garbage_cases() -> list:
    """Of no weight at all, for kernels that must stay in bounds."""
    generator = torch.Generator().manual_seed(11)

    def any_int32(*shape):
        return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)

    cases = []
    for count in (0, 1, 4, 5, 6, 80, 300):
        near = torch.randint(-8, count + 8, (7,), generator=generator).to(torch.int32)
        for offsets in (any_int32(7), near, near.sort().values, near.sort().values.flip(0)):
            cases.append((any_int32(count, 32), offsets, (40, 300), 0))
    return cases


def test_validates_as_the_cpu(driver):
    sound = [packed(weight, seed) for weight in all_weights()[::3] for seed in SEEDS]
    assert_judges_as_the_cpu(driver(VALIDATE, "plain"), sound)


def test_each_broken_rule_is_found(driver):
    cases = damaged_cases()
    for lines, offsets, shape, _ in cases:
        with pytest.raises(RuntimeError):
            ops.tiled_bitmap_validate(lines, offsets, *shape)
    assert_judges_as_the_cpu(driver(VALIDATE, "plain"), cases)


# ---- codes, whose items have one byte ----------------------------------------------------------

CODES = {"ITEM_BYTES": "1"}  # of the environment


def code_weights() -> list[torch.Tensor]:
    """int8, every code at any density; edges that fit nothing."""
    generator = torch.Generator().manual_seed(6)
    found = []
    for number, shape in enumerate(SHAPES):
        codes = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        codes[torch.rand(shape, generator=generator) < SPARSITIES[number % 6]] = 0
        found.append(codes)
    skewed = [(weight != 0).to(torch.int8) * -7 for weight in adversarial()]
    return found + skewed


def assert_codes_survive(sanitizer_of, seeds=SEEDS) -> None:
    """Packed as the CPU packs them, unpacked by scales, counted; and refused where damaged."""
    weights = code_weights()
    numbers = [codes.to(FLOAT16) for codes in weights]
    fed = [(weight, seeds[n % len(seeds)], n % 3) for n, weight in enumerate(numbers)]
    ran = run_pack(sanitizer_of(PACK), fed, **CODES)
    assert ran.returncode == 0, ran.stderr.decode()
    packed_codes = [ops.tiled_bitmap_pack(codes) for codes in weights]
    wanted = [
        torch.cat([torch.tensor([len(lines), 0], dtype=torch.int32), offsets, lines.flatten()])
        for lines, offsets in packed_codes
    ]
    assert ran.stdout == torch.cat(wanted).numpy().tobytes()
    cases = [
        (*packed_codes[n], tuple(codes.shape), seeds[n % len(seeds)])
        for n, codes in enumerate(weights)
    ]
    ran = run_packed_cases(sanitizer_of(UNPACK), cases, timeout=120, **CODES)
    assert ran.returncode == 0, ran.stderr.decode()
    unpacked = [
        (codes * torch.exp2(-(torch.arange(len(codes)) % 5.0))[:, None]).to(BFLOAT16).flatten()
        for codes in weights
    ]
    assert ran.stdout == torch.cat(unpacked).view(torch.int16).numpy().tobytes()
    lines, offsets, shape, _ = cases[3]
    for damage in (offsets + 1, torch.tensor([0, 38], dtype=torch.int32)):
        cases.append((torch.cat([lines, lines])[:38], damage, shape, 0))
    ran = run_packed_cases(sanitizer_of(VALIDATE), cases, timeout=120, **CODES)
    assert ran.returncode == 0, ran.stderr.decode()
    verdicts = np.frombuffer(ran.stdout, dtype=np.int32)
    assert verdicts[:-2].sum() == sum(int((codes != 0).sum()) for codes in weights)
    assert verdicts[:-2].min() >= 0 and verdicts[-2:].tolist() == [-1, -1]


def test_codes_survive(driver):
    assert_codes_survive(lambda name: driver(name, "plain"))


# ---- all three ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_clean_under_sanitizer(driver, sanitizer):
    weights = [
        random_weight(shape, sparsity, BFLOAT16, 3)
        for shape in ((1, 1), (17, 257), (33, 264))
        for sparsity in (0.0, 0.5, 1.0)
    ] + adversarial()
    assert_packs_as_the_cpu(driver(PACK, sanitizer), [(weight, 7, 1) for weight in weights])
    assert_packs_as_the_cpu(driver(PACK, sanitizer), [(weight, 0, 0) for weight in weights])
    assert_unpacks(driver(UNPACK, sanitizer), weights)
    cases = [packed(weight) for weight in weights] + damaged_cases() + garbage_cases()
    assert_judges_as_the_cpu(driver(VALIDATE, sanitizer), cases)
    assert_codes_survive(lambda name: driver(name, sanitizer), (7,))


@pytest.mark.slow
def test_garbage_stays_in_bounds(driver):
    """Whatever the tensors hold, unpacking leaves neither them nor shared memory."""
    for environment in ({}, CODES):
        ran = run_packed_cases(driver(UNPACK, "address"), garbage_cases(), 120, **environment)
        assert ran.returncode == 0, ran.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run", "cases"),
    [
        (PACK, run_pack, lambda weight: [(weight, 7, 1)]),
        (UNPACK, partial(run_packed_cases, timeout=120), lambda weight: [packed(weight, 7)]),
    ],
    ids=["pack", "unpack"],
)
def test_every_barrier_is_needed(name, run, cases):
    """The thread sanitizer reports a race for each barrier of a warp that is taken away."""
    weight = random_weight((17, 300), 0.5, FLOAT16, 5)
    mutants = run_without_each_barrier(
        name, lambda binary, **without: run(binary, cases(weight), **without)
    )
    assert len(mutants) == 3
    for place, ran in mutants.items():
        assert ran.returncode == RACE_EXIT_CODE, place
        assert b"data race" in ran.stderr and b"cuda/tiled_bitmap/" in ran.stderr, place
