# SPDX-License-Identifier: Apache-2.0
"""How the host cuts decode attention on CUDA, from sizes alone."""

from __future__ import annotations

import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
from emulation import KERNELS
from hypothesis import given, settings
from hypothesis import strategies as st
from resources_program import resources

HEAD_DIMS = (64, 80, 96, 128, 256)
GPUS = {"H200": (132, 227 << 10), "A100": (108, 163 << 10), "RTX 4060": (24, 99 << 10)}
Plan = namedtuple("Plan", "warps splits shared_bytes rows")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    binary = tmp_path_factory.mktemp("plan") / "plan"
    sources = [Path(__file__).with_name("unified_max_plan_driver.cpp")]
    sources += [KERNELS / "cuda" / "attention" / "unified_max_plan.cpp"]
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    subprocess.run(["g++", *options, f"-I{KERNELS}", *sources, "-o", binary], check=True)

    def ask(sequences, kv_heads, group, positions, head_dim=128, gpu="H200") -> Plan:
        asked = (sequences, kv_heads, group, positions, head_dim, *GPUS[gpu])
        ran = subprocess.run([binary, *map(str, asked)], capture_output=True, text=True, check=True)
        return Plan(*map(int, ran.stdout.split()))

    return ask


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_block_fits(plan, gpu, head_dim):
    for sequences in (1, 64):
        chosen = plan(sequences, 8, 4, 4096, head_dim, gpu)
        assert 1 <= chosen.warps <= 8 and chosen.shared_bytes <= GPUS[gpu][1]
    if gpu == "H200":
        told = resources.dynamic_shared(f"unified_max::decode_kernel<BFloat16, {head_dim}, 1>")
        assert chosen.warps == 4 and chosen.shared_bytes == told


def test_most_warps_a_multiprocessor(plan):
    """On an A100 two blocks of 3 warps fit where only one of 4 would. Few rows get large blocks."""
    assert plan(64, 8, 4, 4096, 128, "A100").warps == 3
    assert plan(64, 8, 4, 4096, 96, "A100").warps == 4
    assert [plan(1, 8, 4, 4096, 128, gpu).warps for gpu in GPUS] == [8, 6, 4]


def test_a_gpu_that_is_busy_anyway_gets_no_splits(plan):
    for sequences, kv_heads in ((64, 8), (32, 8), (8, 32)):
        assert plan(sequences, kv_heads, 4, 32768).splits == 1


def test_one_sequence_is_spread_over_the_gpu(plan):
    """A block on each multiprocessor; a block takes 16 heads, of 256 only 8."""
    assert plan(1, 8, 4, 32768) == (8, 16, plan(1, 8, 4, 32768).shared_bytes, 8)
    assert [plan(1, 1, group, 32768).rows for group in (1, 8, 16, 17)] == [1, 1, 1, 2]
    assert [plan(1, 1, group, 32768, 256).rows for group in (1, 8, 16, 17)] == [1, 1, 2, 3]
    assert [plan(sequences, 8, 4, 32768).splits for sequences in (4, 8, 16)] == [4, 2, 1]
    assert plan(1, 8, 4, 1000).splits == 4  # 256 positions each
    assert plan(1, 8, 4, 200).splits == plan(1, 8, 4, 0).splits == 1


def test_more_than_16_splits_are_for_long_sequences(plan):
    """They have 1,024 positions each or more, and fit where the rings of a block's warps were."""
    positions = (1 << 12, 1 << 14, 17 << 10, 1 << 15, 1 << 20)
    assert [plan(1, 1, 8, each).splits for each in positions] == [16, 16, 17, 32, 32]
    assert plan(1, 1, 16, 1 << 20).splits == 23  # records of 16 heads
    assert plan(1, 1, 16, 1 << 20, gpu="RTX 4060").splits == 11


@settings(max_examples=100)
@given(
    st.integers(0, 2000), st.integers(1, 128), st.integers(1, 64), st.integers(0, 1 << 30),
    st.sampled_from(HEAD_DIMS), st.sampled_from(sorted(GPUS)),
)  # fmt: skip
def test_any_sizes(plan, sequences, kv_heads, group, positions, head_dim, gpu):
    chosen = plan(sequences, kv_heads, group, positions, head_dim, gpu)
    assert chosen.rows == sequences * kv_heads * -(
        -group // (16 if group > 8 and head_dim < 256 else 8)
    )
    assert 1 <= chosen.splits <= 32 and (chosen.splits - 1) * 256 <= positions
    stages = {64: 4, 80: 4, 96: 3, 128: 3, 256: 2}[head_dim]
    assert chosen.shared_bytes == chosen.warps * stages * 2 * 16 * 2 * head_dim
    if chosen.splits > 1:  # as many counters as a launch may have
        assert chosen.rows <= 4096
