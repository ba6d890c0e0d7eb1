# SPDX-License-Identifier: Apache-2.0
"""The running sum of the CUDA packers, run on the CPU by the emulator."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from emulation import RACE_EXIT_CODE, SANITIZED, SEEDS, run_without_each_barrier

OFFSETS_KERNEL = "cuda/shared/offsets.cuh"
INT32_MAX = 2**31 - 1


def run_offsets(
    binary: Path, lengths: np.ndarray, seed: int, **environment: str
) -> subprocess.CompletedProcess:
    fed = np.array([len(lengths), seed], dtype=np.int64).tobytes() + lengths.tobytes()
    return subprocess.run(
        [str(binary)], input=fed, capture_output=True, timeout=120, env=os.environ | environment
    )


def sum_offsets(binary: Path, lengths: np.ndarray, seed: int = 0) -> tuple[int, np.ndarray]:
    ran = run_offsets(binary, lengths, seed)
    assert ran.returncode == 0, ran.stderr.decode()
    total = int(np.frombuffer(ran.stdout, np.int64, 1)[0])
    return total, np.frombuffer(ran.stdout, np.int32, offset=8)


def some_lengths(parts: int) -> np.ndarray:
    return np.random.default_rng(parts).integers(0, 8193, parts).astype(np.int32)


def assert_sums(binary: Path, parts: int, seed: int) -> None:
    lengths = some_lengths(parts)
    total, offsets = sum_offsets(binary, lengths, seed)
    assert total == lengths.sum(dtype=np.int64)
    assert np.array_equal(offsets, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.parametrize("parts", [1, 2, 3, 127, 128, 129, 4095, 4096, 4097, 8192, 12289])
def test_any_number_of_parts(driver, parts):
    for seed in SEEDS:
        assert_sums(driver("offsets_driver", "plain"), parts, seed)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_clean_under_sanitizer(driver, sanitizer):
    for parts in (1, 130, 4097, 8193):
        assert_sums(driver("offsets_driver", sanitizer), parts, seed=7)


@pytest.mark.slow
def test_the_barrier_is_needed():
    mutants = run_without_each_barrier(
        "offsets_driver",
        lambda binary, **without: run_offsets(binary, some_lengths(300), 7, **without),
    )
    (ran,) = mutants.values()
    assert ran.returncode == RACE_EXIT_CODE
    assert b"data race" in ran.stderr and OFFSETS_KERNEL.encode() in ran.stderr


@pytest.mark.parametrize("beyond", [-4, 0, 4])
def test_the_sum_is_right_where_offsets_overflow(driver, beyond):
    """The host refuses a weight by the sum: the last one that fits, and the first that do not."""
    parts = (INT32_MAX + 1) // 8192
    lengths = np.full(parts, 8192, dtype=np.int32)
    lengths = np.append(lengths[:-1], [8192 - 4, 4 + beyond, 0]).astype(np.int32)
    total, offsets = sum_offsets(driver("offsets_driver", "plain"), lengths)
    assert total == lengths.sum(dtype=np.int64) == INT32_MAX + 1 + beyond
    if total <= INT32_MAX:
        assert offsets[-1] == total
