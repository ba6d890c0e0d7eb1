# SPDX-License-Identifier: Apache-2.0
"""What multiplying an nm_gather weight should cost on a GPU."""

from __future__ import annotations

from ...gpu import BEGIN, ITEMSIZE, LAUNCH, Gpu

LAUNCH_TOKENS = 64  # of one launch at most
# Fitted to benchmarks/results/nvidia-h200/nm.csv: the share of the bandwidth that the weight's
# stream reaches; seconds for what neither overlaps it nor is the launch (the first x, the sums of
# the warps, y), and for each token of a launch; bytes of x that a block transposes in a clock, and
# the rows at which each block has to take all of its columns.
STREAM, ENDS, ENDS_TOKEN = 0.96, 1.2e-6, 0.1e-6
X_BYTES, X_ROWS = 11.0, 128 * 132


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernel, in as many launches as it needs; blocks read x from the L2."""
    total = 0.0
    for begin in range(0, tokens, LAUNCH_TOKENS):
        taken = min(LAUNCH_TOKENS, tokens - begin)
        share = min(1.0, shape[0] / X_ROWS)
        x = ITEMSIZE * taken * shape[1] * share / (X_BYTES * gpu.clock)
        stream = nbytes / (STREAM * gpu.memory)
        total += LAUNCH + BEGIN + ENDS + ENDS_TOKEN * taken + max(stream, x) + 0.2 * min(stream, x)
    return total
