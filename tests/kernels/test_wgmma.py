# SPDX-License-Identifier: Apache-2.0
"""Hopper's warpgroup products in the emulator: what they give, and what of misuse is caught."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest
from emulation import (
    EACH_BUILD,
    EMULATOR_EXIT_CODE,
    KERNELS,
    RACE_EXIT_CODE,
    SEEDS,
    compile_cuda,
    find_nvcc,
)

ROWS, COLUMNS = 256, 64


def operand(shape: tuple[int, int], dtype: str, generator: np.random.Generator):
    """Random bits with magnitudes from 2^-3 to 2^4, and their values in fp64."""
    exponent, fraction, bias = (10, 0x3FF, 15) if dtype == "float16" else (7, 0x7F, 127)
    bits = generator.integers(0, 2**16, shape, dtype=np.uint16)
    scale = generator.integers(bias - 3, bias + 5, shape, dtype=np.uint16)
    bits = (bits & (0x8000 | fraction)) | scale << exponent
    if dtype == "float16":
        return bits, bits.view(np.float16).astype(np.float64)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def problem(dtype: str, tokens: int):
    """The driver's input, and A, B and D of d + a b^T."""
    generator = np.random.default_rng(tokens)
    a_bits, a = operand((ROWS, COLUMNS), dtype, generator)
    b_bits, b = operand((tokens, COLUMNS), dtype, generator)
    d = generator.normal(size=(ROWS, tokens)).astype(np.float32)
    return a_bits.tobytes() + b_bits.tobytes() + d.tobytes(), a, b, d


def product(a, b, d):
    """16 columns at a time, exact in fp64, then rounded to fp32."""
    for k in range(0, COLUMNS, 16):
        d = (d + a[:, k : k + 16] @ b[:, k : k + 16].T).astype(np.float32)
    return d


@pytest.fixture
def wgmma(driver):
    """wgmma(sanitizer, dtype, tokens, mistake, seeds) runs kernels/emulator/wgmma_driver.cpp."""

    def run(sanitizer: str, dtype: str, tokens: int, mistake: str, *seeds: int):
        command = [str(driver("wgmma_driver", sanitizer)), dtype, str(tokens), mistake]
        fed = problem(dtype, tokens)[0]
        return subprocess.run(
            [*command, *map(str, seeds)], input=fed, capture_output=True, timeout=60
        )

    return run


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
@pytest.mark.parametrize("tokens", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products(wgmma, dtype, tokens, sanitizer):
    """Every element where the fragment has it, on every schedule; no sanitizer objects."""
    ran = wgmma(sanitizer, dtype, tokens, "none", *SEEDS)
    assert ran.returncode == 0, ran.stderr.decode()
    wanted = product(*problem(dtype, tokens)[1:])
    answers = np.frombuffer(ran.stdout, dtype=np.float32).reshape(len(SEEDS), ROWS, tokens)
    for answer in answers:
        assert np.array_equal(answer, wanted)


def stored(where: str) -> str:
    """What is said of a store that wgmma does not see, with its line in the driver."""
    lines = (KERNELS / "emulator" / "wgmma_driver.cpp").read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if where in line)
    return rf"shared address \w+, to which thread \d+ has stored \(wgmma_driver.cpp:{number}\)"


STORED, COPIED = stored("store_shared(place_of(a_tile, i /"), stored("copy_async<16>(")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("no_fence", STORED),
        ("no_fence_of_copies", COPIED),
        ("fence_after_barrier", STORED),
        ("no_barrier", STORED),
        ("no_begin", r"wgmma without the wgmma_begin of its batch \(wgmma_driver.cpp:\d+\)"),
        ("no_commit", r"wgmma_wait with no wgmma_commit after the wgmma of line \d+"),
        ("no_wait", r"a thread ends with a wgmma that it has not waited for"),
        ("written_early", r"the sums of a wgmma in flight have been changed"),
        ("misaligned", r"A of wgmma, .*address 0x\w*80: neither on 1024 bytes nor 32, 64 or 96"),
        ("misaligned_columns", r"A of wgmma, .*address 0x\w*10: neither on 1024 bytes nor 32"),
        ("out_of_bounds", r"A of wgmma, .*address 0x[8c]000: out of bounds"),
        ("wrong_flags", r"descriptor 0xc00.*: no operand that wgmma_operand describes"),
        ("static_array", r"wgmma_operand\(0x100000\): a descriptor holds 18 bits of an address"),
        ("missing_thread", r"127 of 128 threads wait at wgmma .*; absent of warp 5: lanes 10 "),
        ("missing_warp", r"wgmma is for 128 threads, warps 4 to 7, .* ends with thread 223"),
        ("different_operands", r"the threads of a warpgroup give wgmma different operands"),
    ],
)
def test_mistakes(wgmma, mistake, message):
    """Each is an error on every schedule, where a GPU would give wrong numbers or hang."""
    for seed in SEEDS:
        ran = wgmma("plain", "bfloat16", 8, mistake, seed)
        assert ran.returncode == EMULATOR_EXIT_CODE, ran.stderr.decode()
        assert re.search(message, ran.stderr.decode()), ran.stderr.decode()


def test_sums_are_poison_until_the_wait(wgmma):
    ran = wgmma("plain", "bfloat16", 8, "read_early", *SEEDS)
    assert ran.returncode == 0, ran.stderr.decode()
    answers = np.frombuffer(ran.stdout, dtype=np.float32).reshape(len(SEEDS), ROWS, 8)
    wanted = product(*problem("bfloat16", 8)[1:])
    # Where d[0] of a lane is, in the first 64 rows of each warpgroup.
    rows = np.arange(ROWS)[:, None]
    early = (rows % 16 < 8) & (rows % 128 < 64) & (np.arange(8) % 2 == 0)
    for answer in answers:
        assert np.isnan(answer[early]).all()
        assert np.array_equal(answer[~early], wanted[~early])


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["overwritten", "overwritten_by_others"])
def test_operands_are_read_until_the_wait(wgmma, mistake):
    """A store before it, or before a barrier that follows it, is a race and a wrong operand."""
    for seed in SEEDS:
        ran = wgmma("plain", "bfloat16", 8, mistake, seed)
        assert ran.returncode == EMULATOR_EXIT_CODE, ran.stderr.decode()
        assert re.search(rb"operands of a wgmma .* were overwritten before its wgmma_w", ran.stderr)
        ran = wgmma("thread", "bfloat16", 8, mistake, seed)
        assert ran.returncode in (EMULATOR_EXIT_CODE, RACE_EXIT_CODE)
        assert b"data race" in ran.stderr and b"wgmma_driver.cpp" in ran.stderr


# ---- A in registers, B as it was gathered -------------------------------------------------------

GATHERED = 64  # rows of A, and depth


def gathered_problem(dtype: str, columns: int):
    """The driver's input, and A, B and D of d + a b, B transposed."""
    generator = np.random.default_rng(columns)
    a_bits, a = operand((GATHERED, GATHERED), dtype, generator)
    b_bits, b = operand((GATHERED, columns), dtype, generator)
    d = generator.normal(size=(GATHERED, columns)).astype(np.float32)
    return a_bits.tobytes() + b_bits.tobytes() + d.tobytes(), a, b.T, d


@pytest.fixture
def gathered(driver):
    """gathered(sanitizer, dtype, columns, mistake, seeds) runs the driver of wgmma_gathered."""

    def run(sanitizer: str, dtype: str, columns: int, mistake: str, *seeds: int):
        binary = driver("wgmma_gathered_driver", sanitizer)
        fed = gathered_problem(dtype, columns)[0]
        command = [str(binary), dtype, str(columns), mistake, *map(str, seeds)]
        return subprocess.run(command, input=fed, capture_output=True, timeout=60)

    return run


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
@pytest.mark.parametrize(
    ("dtype", "columns"), [("float16", 64), ("bfloat16", 128), ("float16", 256), ("bfloat16", 256)]
)
def test_gathered_products(gathered, dtype, columns, sanitizer):
    ran = gathered(sanitizer, dtype, columns, "none", *SEEDS)
    assert ran.returncode == 0, ran.stderr.decode()
    wanted = product(*gathered_problem(dtype, columns)[1:])
    answers = np.frombuffer(ran.stdout, dtype=np.float32).reshape(len(SEEDS), GATHERED, columns)
    for answer in answers:
        assert np.array_equal(answer, wanted)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("no_fence", r"to which thread \d+ has stored .* with no fence_for_wgmma and barrier"),
        ("no_begin", r"wgmma without the wgmma_begin of its batch"),
        ("registers_overwritten", r"the registers of a wgmma .* were overwritten before its wgmma"),
        ("overwritten", r"the operands of a wgmma .* were overwritten before its wgmma_wait"),
        ("wait_for_too_few", r"a thread ends with a wgmma that it has not waited for"),
        ("misaligned", r"B of wgmma_gathered, 128 columns, .*: not on 1024 bytes"),
        ("out_of_bounds", r"B of wgmma_gathered, 128 columns, .* address 0x4000: out of bounds"),
        ("short_slabs", r"B of wgmma_gathered, 128 columns, .*: slabs of fewer than 16 rows"),
        ("wrong_flags", r"B of wgmma_gathered, .*: no operand that gathered_operand describes"),
    ],
)
def test_gathered_mistakes(gathered, mistake, message):
    """Each is an error, where a GPU would give wrong numbers."""
    for seed in SEEDS:
        ran = gathered("plain", "bfloat16", 128, mistake, seed)
        assert ran.returncode == EMULATOR_EXIT_CODE, ran.stderr.decode()
        assert re.search(message, ran.stderr.decode()), ran.stderr.decode()


# ---- under nvcc ---------------------------------------------------------------------------------


@pytest.mark.skipif(find_nvcc() is None, reason="this machine has no nvcc")
def test_compiles_to_the_meant_instructions(tmp_path):
    text, said = compile_cuda(KERNELS / "emulator" / "wgmma_driver.cpp", "sm_90a", tmp_path)
    # Where ptxas mends the order of registers, it says so, but as no warning.
    assert "serialized" not in said and "injected" not in said
    for instruction in (
        *(f"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{name}.{name}"
          for tokens in (8, 16, 32, 64, 128) for name in ("f16", "bf16")),
        "wgmma.fence.sync.aligned", "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned 0", "fence.proxy.async.shared::cta",
    ):  # fmt: skip
        assert instruction in text, instruction


@pytest.mark.skipif(find_nvcc() is None, reason="this machine has no nvcc")
def test_gathered_compiles_to_the_meant_instructions(tmp_path):
    source = KERNELS / "emulator" / "wgmma_gathered_driver.cpp"
    text, said = compile_cuda(source, "sm_90a", tmp_path)
    assert "serialized" not in said and "injected" not in said
    for columns in (64, 128, 256):
        # A in four registers, B transposed: the last number.
        shape = rf"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        registers = r"\{%r\d+, %r\d+, %r\d+, %r\d+\}"
        assert re.search(shape + r"\{[^}]*\}, " + registers + r", %rd\d+, 1, 1, 1, 1;", text)


@pytest.mark.skipif(find_nvcc() is None, reason="this machine has no nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_header_compiles_where_it_cannot_be_used(tmp_path, architecture):
    source = tmp_path / "source.cu"
    source.write_text('#include "common/wgmma_gathered.cuh"\n__global__ void nothing() {}\n')
    assert "wgmma" not in compile_cuda(source, architecture, tmp_path)[0]
