# SPDX-License-Identifier: Apache-2.0
"""Weights that are hard on packers and kernels."""

from __future__ import annotations

import torch
from torch import Tensor

SHAPES = [
    (1, 1), (1, 300), (300, 1), (2, 3), (15, 31), (16, 2), (17, 64), (31, 33), (64, 65), (127, 63),
    (128, 64), (129, 65), (130, 129), (255, 40), (256, 128), (300, 257),
]  # fmt: skip
SPARSITIES = [0.0, 0.3, 0.5, 0.8, 0.97, 1.0]


def random_weight(shape: tuple[int, int], sparsity: float, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal values, each zero with the given probability."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) >= sparsity
    return (torch.randn(shape, generator=generator) * kept).to(dtype)


def skewed_weight(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Tensor:
    """Full rows, empty rows, full columns, and everything between."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(shape[0], 1, generator=generator) ** 4
    rows[:: max(shape[0] // 7, 1)] = 1.0
    cols = torch.rand(1, shape[1], generator=generator).round()
    kept = torch.rand(shape, generator=generator) < torch.maximum(rows, 0.3 * cols)
    return (torch.randn(shape, generator=generator) * kept).to(dtype)


def every_bit_pattern(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> Tensor:
    """Uniform 16-bit patterns: NaN with any payload, infinities, subnormal numbers, both zeros."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, shape, generator=generator, dtype=torch.int16)
    bits[torch.rand(shape, generator=generator) < 0.1] = -(2**15)
    return bits.view(dtype)


def bits_without_negative_zero(weight: Tensor) -> Tensor:
    """The values bit by bit, -0 as +0: all that packing promises to keep."""
    bits = weight.view(torch.int16)
    return torch.where(bits == -(2**15), 0, bits)


def garbage_cases() -> list[tuple[Tensor, Tensor, tuple[int, int], int]]:
    """(words, offsets, shape, seed) of no weight at all, for kernels that must stay in bounds."""
    generator = torch.Generator().manual_seed(11)

    def any_int32(count):
        return torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32)

    cases = []
    for num_words in (0, 1, 3, 4, 7, 64, 1001):
        words = any_int32(num_words)
        near = torch.randint(-8, num_words + 8, (7,), generator=generator).to(torch.int32)
        for offsets in (any_int32(7), near, near.sort().values, near.sort().values.flip(0)):
            cases.append((words, offsets, (300, 100), 0))
    return cases
