# SPDX-License-Identifier: Apache-2.0
"""What multiplying an nm_gather weight should cost on a GPU."""

from __future__ import annotations

import math

from ...gpu import BEGIN, ITEMSIZE, LAUNCH, Gpu, library_seconds

LAUNCH_TOKENS = 64  # of one launch at most
# Share of the bandwidth that the weight's stream reaches, and seconds for what neither overlaps it
# nor is the launch: the first x, the sums of the warps, y. Estimates, until they are measured.
STREAM, ENDS, ENDS_TOKEN = 0.94, 2.0e-6, 0.05e-6
X_ROWS = 128  # rows of a block where a weight has few: its depth is cut among blocks, and x with it
UNPACK_MEMORY = 0.6  # share of the bandwidth that unpacking reaches, over what it reads and writes


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernel, in as many launches as it needs; blocks read x from the L2."""
    total = 0.0
    for begin in range(0, tokens, LAUNCH_TOKENS):
        taken = min(LAUNCH_TOKENS, tokens - begin)
        readers = min(gpu.multiprocessors, shape[0] / X_ROWS)
        x_bytes = readers * taken * shape[1] * ITEMSIZE
        stream = max(nbytes / (STREAM * gpu.memory), (nbytes + x_bytes) / gpu.l2)
        total += LAUNCH + BEGIN + ENDS + ENDS_TOKEN * taken + stream
    return total


def unpacked_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Unpacking, and the library's product."""
    moved = nbytes + math.prod(shape) * ITEMSIZE
    return moved / (UNPACK_MEMORY * gpu.memory) + LAUNCH + library_seconds(shape, tokens, gpu)
