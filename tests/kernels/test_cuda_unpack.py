# SPDX-License-Identifier: Apache-2.0
"""The CUDA unpack kernel's own source, run on the CPU by the emulator, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import (
    RACE_EXIT_CODE,
    SANITIZED,
    SEEDS,
    run_packed_cases,
    run_without_each_barrier,
)
from kernel_weights import garbage_cases

from flashsparse_plugin.formats.unstructured.tiled_csl import TiledCSL
from flashsparse_plugin.ops import ops
from flashsparse_plugin.packed import PackedWeight

UNPACK_KERNEL = "cuda/tiled_csl/unpack.cuh"


def unpack(binary: Path, cases) -> list[torch.Tensor]:
    """The weights' bits, int16 [rows, cols], of the cases."""
    ran = run_packed_cases(binary, cases, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    bits = torch.from_numpy(np.frombuffer(ran.stdout, dtype=np.int16).copy())
    shapes = [shape for *_, shape, _ in cases]
    parts = bits.split([rows * cols for rows, cols in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def random_weight(shape: tuple[int, int], density: float, dtype: torch.dtype, seed: int):
    """Any bit pattern, NaN, infinities and subnormals included, at a density."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16, generator=generator)
    bits[(bits & 0x7FFF) == 0] = 0x7E01  # a NaN in both dtypes
    kept = torch.rand(shape, generator=generator) < density
    return torch.where(kept, bits, 0).view(dtype)


def packed_cases(weights, seeds=SEEDS):
    """Every weight, packed, once a schedule."""
    packed = [(*ops.tiled_csl_pack(weight), tuple(weight.shape)) for weight in weights]
    return [(*case, seed) for case in packed for seed in seeds]


def expected(cases) -> list[torch.Tensor]:
    return [
        TiledCSL()
        .reference.unpack(
            PackedWeight(
                TiledCSL().scheme(torch.float16),
                shape,
                {"weight_packed": words, "tile_offsets": offsets},
            )
        )
        .view(torch.int16)
        for words, offsets, shape, _ in cases
    ]


SHAPES = (
    *((1, 1), (1, 300), (300, 1), (2, 3), (8, 8), (127, 63), (128, 64), (129, 65), (128, 72)),
    *((64, 200), (130, 8), (255, 129), (256, 128), (300, 300)),
)
DENSITIES = (0.0, 0.01, 0.2, 0.5, 0.99, 1.0)


def test_every_shape_and_density_bit_for_bit(driver):
    weights = [
        random_weight(shape, density, dtype, seed)
        for seed, shape in enumerate(SHAPES)
        for density in DENSITIES
        for dtype in (torch.float16, torch.bfloat16)
    ]
    # Tiles at 0% beside tiles at 100% in one weight.
    mixed = random_weight((256, 192), 1.0, torch.bfloat16, 0)
    mixed[:128, 64:128] = 0
    mixed[128:, :64] = 0
    cases = packed_cases([*weights, mixed])
    results = unpack(driver("tiled_csl/unpack_driver", "plain"), cases)
    assert len(results) == 3 * (len(SHAPES) * len(DENSITIES) * 2 + 1)
    for result, wanted in zip(results, expected(cases), strict=True):
        assert torch.equal(result, wanted)
    originals = [weight.view(torch.int16) for weight in [*weights, mixed] for _ in SEEDS]
    for result, original in zip(results, originals, strict=True):
        assert torch.equal(result, original)


@pytest.mark.parametrize("sanitizer", SANITIZED)
def test_clean_under_sanitizer(driver, sanitizer):
    weights = [
        random_weight(shape, density, torch.bfloat16, 3)
        for shape in ((1, 1), (127, 63), (129, 65), (130, 72))
        for density in (0.0, 0.3, 1.0)
    ]
    cases = packed_cases(weights)
    for result, wanted in zip(
        unpack(driver("tiled_csl/unpack_driver", sanitizer), cases), expected(cases), strict=True
    ):
        assert torch.equal(result, wanted)


@pytest.mark.slow
def test_garbage_stays_in_bounds(driver):
    """Whatever the tensors hold, the kernel leaves neither them nor shared memory."""
    assert len(unpack(driver("tiled_csl/unpack_driver", "address"), garbage_cases())) == 28


@pytest.mark.slow
def test_every_barrier_is_needed():
    """The thread sanitizer reports a race for each `__syncthreads` that is taken away."""
    cases = packed_cases([random_weight((129, 65), 0.5, torch.float16, 5)], seeds=(0,))
    mutants = run_without_each_barrier(
        "tiled_csl/unpack_driver",
        lambda binary, **without: run_packed_cases(binary, cases, timeout=120, **without),
    )
    assert len(mutants) == 2
    for ran in mutants.values():
        assert ran.returncode == RACE_EXIT_CODE
        assert b"data race" in ran.stderr
        assert UNPACK_KERNEL.encode() in ran.stderr  # names the line of the kernel
