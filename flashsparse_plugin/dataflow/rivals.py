# SPDX-License-Identifier: Apache-2.0
"""What dense layers of fewer bits should take on a GPU: what people could use in place of zeros."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..gpu import ITEMSIZE, LIBRARY_TOKENS, Gpu
from ..served import Experts

# Fitted to the dense fp8 products of benchmarks/results (docs/evaluate.md has the errors): seconds
# beside the bytes, the share of the bandwidth, and arithmetic in units of that on 16 bits. x is
# quantised outside of what was measured.
FIXED, MEMORY, FP8_ARITHMETIC = 3.0e-6, 0.88, 2.0
FP8_CAPABILITY = (8, 9)
# The same of codes of 4 bits by groups of 128, as Marlin multiplies them on an H200. Bytes and
# arithmetic hide each other in part: together they take the root of the sum of their squares.
MARLIN_FIXED, MARLIN_MEMORY, MARLIN_ARITHMETIC = 6.0e-6, 0.70, 0.46
MARLIN_BITS = 4 + 16 / 128
# Beyond the 64 tokens of those measurements nothing was measured here. On an A100 Marlin was
# published at 0.60 of the library's speed for 2048 tokens (1024: 0.66, 128: 1.01); the figure
# above, of Hopper without its wgmma, is extrapolated.
MARLIN_PUBLISHED = 0.60
MARLIN_PROMPTS = (
    "int4 with prompts: modelled, Marlin at 0.6 of dense, as published for an A100, and at 0.46 on "
    "Hopper (https://github.com/vllm-project/vllm/pull/2497). There vLLM prefers Machete, which is "
    "published to match dense (https://github.com/vllm-project/vllm/tree/main/csrc/quantization/"
    "machete)"
)
MARLIN_TOKENS = 64  # that were measured at most


class ExpertKernel(NamedTuple):
    """What multiplies the experts of a mixture in vLLM.

    Fitted to its products of Qwen3-30B-A3B's and Mixtral-8x7B's shapes on an H200, with 1 to 256
    tokens (tests/dataflow/test_experts.py has the times).

    Attributes:
        bits: A weight.
        fixed: Seconds a matrix, of the two that a layer's experts have.
        memory: Share of the bandwidth.
        arithmetic: In units of what the library reaches on 16 bits.
    """

    bits: float
    fixed: float
    memory: float
    arithmetic: float

    def seconds(self, experts: Experts, tokens: int, gpu: Gpu) -> float:
        """Of one step of all layers: what is read grows with the tokens until all experts are."""
        total = 0.0
        for (rows, columns), layers in experts.matrices.items():
            weights = rows * columns
            nbytes = experts.read(tokens) * weights * self.bits / 8
            operations = 2.0 * tokens * experts.active * weights
            arithmetic = operations / (self.arithmetic * gpu.arithmetic)
            reading = nbytes / (self.memory * gpu.memory)
            total += layers * (self.fixed + math.hypot(reading, arithmetic))
        return total


EXPERTS_16 = ExpertKernel(16.0, 4.5e-6, 0.91, 0.80)
EXPERTS_FP8 = ExpertKernel(8.0, 5.5e-6, 0.85, 0.60)
EXPERTS_INT4 = ExpertKernel(MARLIN_BITS, 8.5e-6, 0.73, 0.18)


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
    share = MARLIN_ARITHMETIC if gpu.capability[0] == 9 else MARLIN_PUBLISHED
    arithmetic = 2.0 * tokens * weights / (share * gpu.arithmetic)
    return MARLIN_FIXED + math.hypot(memory, arithmetic)


def activation_seconds(shape: tuple[int, int], tokens: int, gpu: Gpu) -> float:
    """Reading x and writing y in 16 bits."""
    return ITEMSIZE * tokens * sum(shape) / gpu.memory
