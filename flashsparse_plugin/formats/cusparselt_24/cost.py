# SPDX-License-Identifier: Apache-2.0
"""What cuSPARSELt's product of prompts should cost."""

from __future__ import annotations

import math

from ...gpu import BEGIN, LAUNCH, Gpu

# Fitted to library_us in benchmarks/results/nvidia-h200/cusparselt.csv from 256 tokens on, which it
# meets by 6% on average: a tile of the product, how much faster than dense products it is, and
# what the least part of a turn of all multiprocessors takes.
ROWS, TOKENS, GAIN, LEAST = 128, 256, 1.55, 0.6
MEMORY = 0.9  # share of the bandwidth, a guess: products bind


def library_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The library's product, by whole turns of its tiles; infinite for few tokens.

    For those it is slower than a dense layer in bfloat16, and never the choice.

    Args:
        shape: (out_features, in_features).
        nbytes: Of the library's own copy.
        tokens: At least 1.
        gpu: What the estimate knows of the device.
    """
    if tokens < TOKENS:
        return math.inf
    turns = -(-shape[0] // ROWS) * -(-tokens // TOKENS) / gpu.multiprocessors
    turns = math.ceil(turns) if turns > 1 else max(turns, LEAST)
    rate = GAIN * gpu.arithmetic / gpu.multiprocessors
    products = turns * 2 * ROWS * TOKENS * shape[1] / rate
    return LAUNCH + BEGIN + max(nbytes / (MEMORY * gpu.memory), products)
