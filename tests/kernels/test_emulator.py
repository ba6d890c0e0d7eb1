# SPDX-License-Identifier: Apache-2.0
"""The SIMT emulator that runs the CUDA kernels' own source on the CPU: what it runs and catches."""

from __future__ import annotations

import itertools
import json
import re
import subprocess

import numpy as np
import pytest
from emulation import (
    EACH_BUILD,
    EMULATOR_EXIT_CODE,
    EMULATOR_SOURCES,
    KERNELS,
    RACE_EXIT_CODE,
    SEEDS,
)


@pytest.fixture
def self_test(driver):
    """self_test(sanitizer, case, seeds) runs one kernel of kernels/emulator/self_test.cpp."""

    def run(sanitizer: str, case: str, *seeds: int) -> subprocess.CompletedProcess:
        command = [str(driver("self_test", sanitizer)), case, *map(str, seeds or (0,))]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def numbers(ran: subprocess.CompletedProcess) -> list[int]:
    assert ran.returncode == 0, ran.stderr
    return [int(line) for line in ran.stdout.split()]


def test_schedules(self_test):
    """Blocks, warps and lanes in rising, falling and shuffled order."""
    rising, falling, shuffled = (numbers(self_test("plain", "order", seed)) for seed in SEEDS)
    assert rising == list(range(12 * 64))
    assert falling == rising[::-1]
    assert sorted(shuffled) == rising
    threads = [[number % 64 for number in shuffled if number // 64 == block] for block in range(12)]
    warps = [[thread for thread in threads[0] if thread // 32 == warp] for warp in range(2)]
    blocks = list(dict.fromkeys(number // 64 for number in shuffled))
    for order in (blocks, *threads, *warps):
        assert order not in (sorted(order), sorted(order)[::-1])
    assert threads[0] != threads[1]


def test_shuffled_blocks_run_at_once(self_test):
    """Seeds 0 and 1 finish one block before the next, others mix up to three."""
    for seed in SEEDS:
        blocks = [number // 64 for number in numbers(self_test("plain", "order", seed))]
        stretches = len(list(itertools.groupby(blocks)))
        assert stretches > 12 if seed > 1 else stretches == 12
        assert len(set(blocks[: 3 * 64])) == 3


def test_blocks_of_the_largest_size(self_test):
    assert numbers(self_test("plain", "large_blocks", *SEEDS)) == [2 * 1024] * len(SEEDS)


def turned_around():
    return np.arange(12 * 64).reshape(12, 64)[:, ::-1].ravel().tolist()


RIGHT = {
    "reverse": turned_around(),
    "all_store": [10] * 12 * 64,
    "last_block": (np.arange(64) * 12 + 64 * 66).tolist() + [7] * 11 * 64,
    "syncwarp": (np.arange(64) ^ 1).tolist() * 12,
    "ldmatrix": [*(32 + np.arange(32) // 4), *(np.arange(32) // 4)] * 12,
    "copy_early": (np.arange(64) ^ 1).tolist() * 12,
    "wait": np.arange(64).tolist() * 12,
    "waited_load": [7] * 12 * 64,
    "last_kernel": np.arange(64).tolist() * 12,
}


@pytest.mark.parametrize("sanitizer", EACH_BUILD)
@pytest.mark.parametrize("case", RIGHT)
def test_right_kernels(self_test, sanitizer, case):
    """What is right gives the right answer on every schedule, and no sanitizer objects."""
    assert numbers(self_test(sanitizer, case, *SEEDS)) == RIGHT[case] * len(SEEDS)


def test_without_assembly(tmp_path):
    """Elsewhere than on x86-64 the system switches stacks."""
    binary = tmp_path / "self_test"
    sources = [str(KERNELS / name) for name in ("emulator/self_test.cpp", *EMULATOR_SOURCES)]
    command = ["g++", "-std=c++17", "-Og", "-DSIMT_UCONTEXT", f"-I{KERNELS}", *sources]
    subprocess.run([*command, "-o", str(binary)], check=True)
    for case, wanted in RIGHT.items():
        command = [str(binary), case, *map(str, SEEDS)]
        assert numbers(subprocess.run(command, capture_output=True, text=True)) == wanted * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "seeds"),
    [
        ("reverse_race", SEEDS),  # a race is seen whatever the schedule
        ("syncwarp_race", (0,)),  # and whatever else lanes meet at
        ("ldmatrix_race", (0,)),
        ("copy_early_race", (0,)),
    ],
)
def test_races(self_test, case, seeds):
    for seed in seeds:
        ran = self_test("thread", case, seed)
        assert ran.returncode == RACE_EXIT_CODE
        assert "data race" in ran.stderr and "self_test.cpp" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", ["blocks_race", "last_block_race"])
def test_races_between_blocks(self_test, case):
    ran = self_test("thread", case, 7)
    assert ran.returncode == RACE_EXIT_CODE
    assert "data race" in ran.stderr


def test_shared_memory_starts_as_garbage(self_test):
    assert set(numbers(self_test("plain", "read_unwritten", *SEEDS))) == {2**32 - 1}


def test_copy_is_poison_until_the_wait(self_test):
    assert set(numbers(self_test("plain", "no_wait", *SEEDS))) == {2**32 - 1}


def test_the_last_kernel_writes_when_nothing_else_can_run(self_test):
    """The blocks that were resident before it ended read too early; later ones find it ended."""
    for seed in SEEDS:
        found = numbers(self_test("plain", "last_kernel_early", seed))
        early = [block for block in range(12) if found[64 * block] != 0]
        assert len(early) == (3 if seed > 1 else 1)
        for block in range(12):
            wanted = [2**32 - 1] * 64 if block in early else list(range(64))
            assert found[64 * block : 64 * block + 64] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("case", ["overrun", "dynamic_overrun"])
def test_overrun_of_shared_memory(self_test, case):
    ran = self_test("address", case)
    assert ran.returncode != 0
    assert "heap-buffer-overflow" in ran.stderr


@pytest.mark.slow
def test_misaligned_vector_load(self_test):
    ran = self_test("address", "misaligned")
    assert ran.returncode != 0
    assert "misaligned address" in ran.stderr


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("two_barriers", r"some threads wait at __syncthreads on line \d+, others on line \d+"),
        ("early_end", r"32 of 64 threads wait at __syncthreads .*\n  32 of 64 threads have ended"),
        ("absent_lanes", r"mma_m16n8k16 .*; absent of warp 1: lanes 3, 17 \(ended: 3, 17\)"),
        ("lanes_elsewhere", r"30 of 32 lanes wait at __shfl_sync .* warp 0: lanes 0, 1$"),
        ("different_collectives", r"lane \d+ is at (ldmatrix|__shfl_sync) .*are at (__s|ldm)"),
        ("not_in_mask", r"lane \d+ is not in the mask 0xffff of its __syncwarp"),
        ("shuffle_from_outside", r"lane \d+ reads lane 20, which is not in the mask 0xffff"),
        ("different_thread_counts", r"sync_threads_of for 32 threads .* others wait .* for 64"),
        ("wrong_barrier", r"sync_threads_of\(16, 64\): barriers are 1 to 15"),
        ("shared_out_of_bounds", r"store_shared of 4 bytes at shared address 0x3fe.*out of bounds"),
        ("shared_misaligned", r"store_shared of 4 bytes at shared address 0x2.*misaligned"),
        ("misaligned_load", r"load_global of 16 bytes at the misaligned address"),
        ("address_of_global", r"is not in the block's shared memory"),
        ("early_load", r"load_global of what the kernel before may still use, without a wait"),
        ("copy_in_flight", r"a thread ends with asynchronous copies in flight"),
        ("no_blocks", r"a grid of no blocks"),
        ("too_many_threads", r"1025 threads a block"),
        ("too_much_shared", r"233472 bytes of dynamic shared memory"),
    ],
)
@pytest.mark.parametrize("sanitizer", ["plain", pytest.param("address", marks=pytest.mark.slow)])
def test_what_no_gpu_allows(self_test, case, message, sanitizer):
    ran = self_test(sanitizer, case)
    assert ran.returncode == EMULATOR_EXIT_CODE, ran.stderr
    assert re.search(message, ran.stderr, re.MULTILINE), ran.stderr


@pytest.mark.slow
def test_errors_are_no_races(self_test):
    ran = self_test("thread", "early_end", 7)
    assert ran.returncode == EMULATOR_EXIT_CODE, ran.stderr
    assert "ThreadSanitizer" not in ran.stderr


@pytest.mark.parametrize(
    ("case", "wanted"),
    [  # operation, requests, wavefronts, sectors of each line
        ("row", [("load_shared", 3, 3, 0)]),  # three times 32 words side by side
        ("stride_2", [("load_shared", 3, 6, 0)]),
        ("stride_32", [("load_shared", 3, 96, 0)]),  # all in one bank
        ("broadcast", [("load_shared", 1, 1, 0)]),
        # 8 and 16 bytes a lane, side by side; 16 bytes for the first 8 lanes only
        ("wide", [("load_shared", 1, 2, 0), ("load_shared", 1, 4, 0), ("load_shared", 1, 1, 0)]),
        ("halves", [("store_shared", 1, 1, 0)]),  # both halves of 16 words
        ("halves_apart", [("store_shared", 1, 2, 0)]),  # the same banks, but 32 words
        ("matrices", [("ldmatrix", 1, 32, 0)]),  # the 8 rows of a matrix in the same 4 banks
        ("matrices_swizzled", [("ldmatrix", 1, 4, 0)]),
        ("copies", [("copy_async", 1, 4, 5)]),  # 32 x 16 bytes stored, 10 x 16 read
        ("global", [("load_global", 1, 0, 4), ("store_global", 1, 0, 4)]),
        ("global_stride_8", [("load_global", 1, 0, 32), ("store_global", 1, 0, 32)]),
    ],
)
def test_statistics(self_test, case, wanted):
    for seed in SEEDS:
        ran = self_test("plain", f"count_{case}", seed)
        assert ran.returncode == 0, ran.stderr
        lines = json.loads(ran.stdout)
        assert {line["file"] for line in lines} == {"self_test.cpp"}
        assert [line["line"] for line in lines] == sorted({line["line"] for line in lines})
        keys = ("operation", "requests", "wavefronts", "sectors")
        assert [tuple(line[key] for key in keys) for line in lines] == wanted
