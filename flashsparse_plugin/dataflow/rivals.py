# SPDX-License-Identifier: Apache-2.0
"""What dense layers of fewer bits should take on a GPU: what people could use in place of zeros."""

from __future__ import annotations

import math

from ..gpu import ITEMSIZE, LIBRARY_TOKENS, Gpu

# Fitted to the dense fp8 products of benchmarks/results (docs/evaluate.md has the errors): seconds
# beside the bytes, the share of the bandwidth, and arithmetic in units of that on 16 bits. x is
# quantised outside of what was measured.
FIXED, MEMORY, FP8_ARITHMETIC = 3.0e-6, 0.88, 2.0
FP8_CAPABILITY = (8, 9)
# The same of codes of 4 bits by groups of 128, as Marlin multiplies them on an H200. Bytes and
# arithmetic hide each other in part: together they take the root of the sum of their squares.
MARLIN_FIXED, MARLIN_MEMORY, MARLIN_ARITHMETIC = 6.0e-6, 0.70, 0.46
MARLIN_BITS = 4 + 16 / 128


def fp8_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """A dense product with fp8 on both sides, beside x and y.

    Args:
        shape: (out_features, in_features).
        tokens: At least 1.
        gpu: What the estimate knows of the device.
    """
    weights = shape[0] * shape[1]
    padded = LIBRARY_TOKENS * -(-tokens // LIBRARY_TOKENS)
    arithmetic = 2.0 * padded * weights / (FP8_ARITHMETIC * gpu.arithmetic)
    return FIXED + max(weights / (MEMORY * gpu.memory), arithmetic)


def marlin_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """A dense product of 4-bit weights with 16-bit activations, beside x and y; see fp8_seconds."""
    weights = shape[0] * shape[1]
    memory = weights * MARLIN_BITS / 8 / (MARLIN_MEMORY * gpu.memory)
    arithmetic = 2.0 * tokens * weights / (MARLIN_ARITHMETIC * gpu.arithmetic)
    return MARLIN_FIXED + math.hypot(memory, arithmetic)


def activation_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """Reading x and writing y in 16 bits."""
    return ITEMSIZE * tokens * sum(shape) / gpu.memory
