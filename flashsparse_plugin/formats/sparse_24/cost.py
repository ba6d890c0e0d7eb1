# SPDX-License-Identifier: Apache-2.0
"""What multiplying a sparse_24 weight should cost."""

from __future__ import annotations

import math

from ...gpu import BEGIN, ITEMSIZE, LAUNCH, Gpu, library_seconds

# Fitted to a prototype of the kernel, float16 on an H200: the share of the bandwidth that it
# reaches; seconds beside the bytes (the first x, the last sums); and for each token of a launch.
MEMORY, FIXED, TOKEN = 0.93, 2.2e-6, 0.05e-6
X_ROWS = 128  # rows of a block, which reads x of all its columns from the L2
UNPACK_MEMORY = 0.6  # share of the bandwidth that unpacking reaches, over what it reads and writes


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernel, in as many launches as it needs."""
    total = 0.0
    # Blocks of 99 KB of shared memory have room for x of 32 tokens.
    launch_tokens = 64 if gpu.capability in ((8, 0), (9, 0), (10, 0)) else 32
    for begin in range(0, tokens, launch_tokens):
        taken = min(launch_tokens, tokens - begin)
        x_bytes = ITEMSIZE * taken * math.prod(shape) / X_ROWS
        busy = max(nbytes / (MEMORY * gpu.memory), (nbytes + x_bytes) / gpu.l2)
        total += LAUNCH + BEGIN + FIXED + TOKEN * taken + busy
    return total


def unpacked_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Unpacking, and the library's product."""
    moved = nbytes + math.prod(shape) * ITEMSIZE
    unpack = moved / (UNPACK_MEMORY * gpu.memory) + LAUNCH
    return unpack + library_seconds(shape, tokens, gpu)
