# SPDX-License-Identifier: Apache-2.0
"""What dense layers of fewer bits should take on a GPU: what people could use in place of zeros."""

from __future__ import annotations

from ..gpu import ITEMSIZE, LIBRARY_TOKENS, Gpu

# Fitted to the dense fp8 products of benchmarks/results (docs/evaluate.md has the errors): seconds
# beside the bytes, the share of the bandwidth, and arithmetic in units of that on 16 bits. x is
# quantised outside of what was measured.
FIXED, MEMORY, FP8_ARITHMETIC = 3.0e-6, 0.88, 2.0
FP8_CAPABILITY = (8, 9)
# int4 by groups of 128 (Marlin) was not measured by us: it is taken to reach as much of the
# bandwidth as fp8, and the library's arithmetic on 16 bits. This is kind to it.
INT4_BITS = 4 + 16 / 128


def fp8_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """A dense product with fp8 on both sides, beside x and y.

    Args:
        shape: (out_features, in_features).
        tokens: At least 1.
        gpu: What the estimate knows of the device.
    """
    return _seconds(shape, 8.0, tokens, gpu, FP8_ARITHMETIC)


def int4_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """A dense product of int4 weights with 16-bit activations, beside x and y."""
    return _seconds(shape, INT4_BITS, tokens, gpu, 1.0)


def _seconds(
    shape: tuple[int, int], bits: float, tokens: int, gpu: Gpu, arithmetic: float
) -> float:
    weights = shape[0] * shape[1]
    padded = LIBRARY_TOKENS * -(-tokens // LIBRARY_TOKENS)
    memory = weights * bits / 8 / (MEMORY * gpu.memory)
    return FIXED + max(memory, 2.0 * padded * weights / (arithmetic * gpu.arithmetic))


def activation_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """Reading x and writing y in 16 bits."""
    return ITEMSIZE * tokens * sum(shape) / gpu.memory
