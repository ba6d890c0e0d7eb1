# SPDX-License-Identifier: Apache-2.0
"""What multiplying a sparse_24 weight should cost."""

from __future__ import annotations

import math

from ...gpu import BEGIN, LAUNCH, Gpu

# Fitted to benchmarks/results/nvidia-h200/nm.csv: the share of the bandwidth that it reaches;
# seconds beside the bytes (the first x, the last sums), and for each token of a launch; turns of
# shared memory for a unit of 16 rows x 256 columns, for each token of it, and a second.
MEMORY, FIXED, TOKEN = 0.93, 2.2e-6, 0.07e-6
UNIT, UNIT_TURNS, TOKEN_TURNS, TURNS = 16 * 256, 72, 3, 1.23e9


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernel, in as many launches as it needs."""
    total = 0.0
    # Blocks of 99 KB of shared memory have room for x of 32 tokens.
    launch_tokens = 64 if gpu.capability in ((8, 0), (9, 0), (10, 0)) else 32
    units = math.prod(shape) / UNIT / gpu.multiprocessors
    for begin in range(0, tokens, launch_tokens):
        taken = min(launch_tokens, tokens - begin)
        shared = units * (UNIT_TURNS + TOKEN_TURNS * taken) / TURNS
        total += LAUNCH + BEGIN + FIXED + TOKEN * taken
        total += max(nbytes / (MEMORY * gpu.memory), shared)
    return total
