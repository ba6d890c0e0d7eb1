# SPDX-License-Identifier: Apache-2.0
"""The CUDA packer's own source, run on the CPU by the emulator, against the CPU's packer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import weights as strategies
from emulation import RACE_EXIT_CODE, SANITIZED, SEEDS, run_without_each_barrier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_weights import SHAPES, every_bit_pattern, random_weight, skewed_weight
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import flashsparse_plugin as fs
from flashsparse_plugin.ops import STATUS, ops

PACK_KERNEL = "cuda/tiled_csl/pack.cuh"
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
SPARSITIES = (0.0, 0.01, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 0.999, 1.0)


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


def pack(binary: Path, cases) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(words, offsets) of the cases."""
    ran = run_pack(binary, cases)
    assert ran.returncode == 0, ran.stderr.decode()
    numbers = np.frombuffer(ran.stdout, dtype=np.int32).copy()
    results, at = [], 0
    for weight, *_ in cases:
        tiles = -(-weight.shape[0] // 128) * -(-weight.shape[1] // 64)
        count = int(np.frombuffer(ran.stdout, np.int64, 1, offset=4 * at)[0])
        offsets = numbers[at + 2 : at + 3 + tiles]
        at += 3 + tiles + count
        results.append((torch.from_numpy(numbers[at - count : at]), torch.from_numpy(offsets)))
    assert at == len(numbers)
    return results


def assert_packs_as_the_cpu(binary: Path, cases) -> None:
    cases = list(cases)
    for (weight, *_), made in zip(cases, pack(binary, cases), strict=True):
        for tensor, expected in zip(made, ops.tiled_csl_pack(weight), strict=True):
            assert torch.equal(tensor, expected), tuple(weight.shape)


def adversarial() -> list[torch.Tensor]:
    """Tiles whose banks are as unequal as they can be, and those at the edges of the rounds."""
    one_bank = torch.zeros(128, 64, dtype=FLOAT16)  # 256 words in one bank: the swizzle undone
    rows = torch.arange(128)
    for half in (0, 1):
        one_bank[rows, (rows % 8) * 8 + half] = 1.0
    few = one_bank.clone()
    few[3, :] = 2.0
    alone = torch.zeros(128, 64, dtype=BFLOAT16)
    alone[127, 63] = torch.nan
    pairs = torch.zeros(128, 64, dtype=BFLOAT16)  # pairs only, of different number
    for pair in range(32):
        pairs[: 4 * pair + 1, 2 * pair : 2 * pair + 2] = 1.0
    singles = pairs.clone()
    singles[:, 1::2] = 0
    negative_zeros = torch.full((128, 64), -0.0, dtype=FLOAT16)
    mixed = random_weight((256, 192), 0.0, BFLOAT16, 0)  # tiles at 0% beside tiles at 100%
    mixed[:128, 64:128] = 0
    mixed[128:, :64] = 0
    return [one_bank, one_bank.t(), few, alone, pairs, singles, negative_zeros, mixed]


def test_every_shape_and_density_bit_for_bit(driver):
    assert_packs_as_the_cpu(
        driver("tiled_csl/pack_driver", "plain"),
        [
            (random_weight(shape, sparsity, (BFLOAT16, FLOAT16)[number % 2], number), seed, shift)
            for number, shape in enumerate([*SHAPES, (64, 200), (128, 72), (384, 320)])
            for sparsity in SPARSITIES
            for seed, shift in zip(SEEDS, (0, 1, 2), strict=True)
        ],
    )


def test_skewed_and_adversarial_tiles(driver):
    skewed = [
        skewed_weight(shape, dtype, seed)
        for seed, shape in enumerate([(128, 64), (300, 257), (17, 200), (256, 256)])
        for dtype in (BFLOAT16, FLOAT16)
    ]
    cases = [(weight, seed, 0) for weight in [*skewed, *adversarial()] for seed in SEEDS]
    assert_packs_as_the_cpu(driver("tiled_csl/pack_driver", "plain"), cases)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
def test_keeps_every_bit_pattern(driver, dtype):
    shapes = [(128, 64), (150, 131), (3, 77)]
    cases = [(every_bit_pattern(shape, dtype, seed), seed, 0) for seed, shape in enumerate(shapes)]
    assert_packs_as_the_cpu(driver("tiled_csl/pack_driver", "plain"), cases)


# The programs are compiled once for the session, whatever the example.
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weight=strategies.weights(), seed=st.integers(0, 9), shift=st.integers(0, 3))
def test_any_weight(driver, weight, seed, shift):
    assert_packs_as_the_cpu(driver("tiled_csl/pack_driver", "plain"), [(weight, seed, shift)])


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_clean_under_sanitizer(driver, sanitizer):
    random = [
        random_weight(shape, sparsity, BFLOAT16, 3)
        for shape in ((1, 1), (127, 63), (129, 65), (130, 72))
        for sparsity in (0.0, 0.5, 0.9, 1.0)
    ]
    cases = [(weight, 7, 1) for weight in random] + [(weight, 0, 0) for weight in adversarial()]
    assert_packs_as_the_cpu(driver("tiled_csl/pack_driver", sanitizer), cases)


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer reports each `__syncthreads` that is taken away.

    As a race, or, where counts that are not there yet lead out of shared memory, as a bad address.
    """
    cases = [(random_weight((129, 65), 0.5, FLOAT16, 5), 7, 0)]
    mutants = run_without_each_barrier(
        "tiled_csl/pack_driver",
        lambda binary, **without: run_pack(binary, cases, **without),
    )
    assert len(mutants) == 3
    for ran in mutants.values():
        assert ran.returncode == RACE_EXIT_CODE
        assert b"data race" in ran.stderr or b"ThreadSanitizer: SEGV" in ran.stderr
        assert b"flashsparse::tiled_csl::" in ran.stderr  # in one of the kernels


# ---- where weights are packed ------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize(
    ("format", "options"),
    [("tiled_csl", {}), ("tiled_bitmap", {}), ("nm_vector", {"n": 2, "m": 4})],
)
def test_packs_where_the_weight_lies_if_there_is_a_kernel(monkeypatch, format, options, loaded):
    devices = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is getattr(ops, f"{format}_pack").default:
                devices.append(args[0].device.type)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(STATUS["_C_cuda"], "loaded", loaded)
    with FakeTensorMode(shape_env=ShapeEnv()), Watch():
        packed = fs.pack(torch.empty(300, 128, dtype=FLOAT16, device="cuda"), format, **options)
        assert {tensor.device.type for tensor in packed.tensors.values()} == {"cuda"}
    assert devices == ["cuda" if loaded else "cpu"]
