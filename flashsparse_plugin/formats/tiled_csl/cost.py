# SPDX-License-Identifier: Apache-2.0
"""What multiplying a Tiled-CSL weight should cost; docs/dense.md compares it with measurements."""

from __future__ import annotations

import math

from ...gpu import BEGIN, LAUNCH, Gpu

# Clocks of a multiprocessor for a tile of 128x64 of a "load as sparse" kernel, up to 8 tokens, and
# the share that each further token of a launch adds; seconds for the joining of sums between
# blocks, and for each token of them. Fitted to measurements on an H200.
TILE, TILE_CLOCKS, TILE_CLOCKS_A_BYTE, TILE_TOKEN = 128 * 64, 320, 0.028, 0.0135
JOIN, JOIN_TOKEN = 3.5e-6, 0.06e-6


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernel, in as many launches as it needs."""
    tiles = math.prod(shape) / TILE
    clocks = TILE_CLOCKS + TILE_CLOCKS_A_BYTE * nbytes / tiles
    spread = tiles / (gpu.multiprocessors * gpu.clock)
    launch_tokens = 128 if gpu.capability >= (9, 0) else 32  # kernels/cuda: the largest shapes
    total = 0.0
    for begin in range(0, tokens, launch_tokens):
        taken = min(launch_tokens, tokens - begin)
        busy = clocks * spread * (1 + TILE_TOKEN * max(0, taken - 8))
        join = JOIN + JOIN_TOKEN * taken
        total += LAUNCH + BEGIN + join + max(nbytes / gpu.memory, busy)
    return total
