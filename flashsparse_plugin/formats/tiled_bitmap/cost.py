# SPDX-License-Identifier: Apache-2.0
"""What multiplying a tiled_bitmap weight should cost.

Fitted to benchmarks/results/nvidia-h200: the kernels for 16 bits to spmm.csv, that for many tokens
to steps.csv, too; the one for codes to tiled_bitmap_sweep_codes.csv.
benchmarks/results/estimates.csv says how well spmm.csv is met.
Estimates for other GPUs take their memory, clock and multiprocessors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...gpu import LAUNCH, LIBRARY_FIXED, LIBRARY_MEMORY, Gpu

UNIT_ROWS, UNIT_COLS, LINE_BYTES = 16, 256, 128

LAUNCH_TOKENS = 64  # of the kernel for few tokens


class Few(NamedTuple):
    """Constants of the kernel for few tokens.

    Attributes:
        fixed: Seconds beside its loop, up to 8 tokens.
        fixed_token: What each further token of a launch adds to that.
        memory: The share of the bandwidth that it reaches.
        unit_clocks, line_clocks: Of a multiprocessor, for a unit and for each line of it, up to 8
            tokens.
        more_token: The share of these that each further token adds.
    """

    fixed: float
    fixed_token: float
    memory: float
    unit_clocks: float
    line_clocks: float
    more_token: float


NATIVE = Few(5.1e-6, 0.12e-6, 0.9, 176, 2.9, 0.0122)
CODES = Few(5.7e-6, 0, 0.78, 234, 0.59, 0.0199)
ROUNDED = Few(6.4e-6, 0, 0.76, 183, 0.5, 0.0247)  # by codes of x, which a launch before makes

# Of many tokens by codes of x, fitted to tiled_bitmap_prompts.csv: the share of the bandwidth that
# unpacking codes reaches, the speed of the library's products of int8 (beside reading the weight)
# over that of 16 bits, the tokens of their tiles, and bytes that each sum moves until it is y.
UNPACK_MEMORY, INT8_ARITHMETIC, INT8_TOKENS, SCALED_BYTES = 0.8, 1.25, 128, 10

# Of the kernel for many tokens, on compute capability 9.0: seconds beside its loop, and clocks of a
# multiprocessor for 64 rows and 64 columns, and for each token of a tile.
MANY_FIXED, MANY_MEMORY = 10e-6, 0.9
PANEL, PANEL_CLOCKS, TOKEN_CLOCKS = 64, 262, 2.5
TILE_TOKENS = (64, 80, 96, 128, 144, 160, 192, 224, 256)
SMALL = 32 << 20  # elements of a layer whose few tokens are 64 (wgmma_plan.h)


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernels, by the one that the op takes where no plan says which."""
    most = 64 if math.prod(shape) <= SMALL else 32
    if gpu.capability != (9, 0) or tokens <= most:
        return few_seconds(shape, nbytes, tokens, gpu)
    return max(few_seconds(shape, nbytes, most, gpu), many_seconds(shape, nbytes, tokens, gpu))


def few_seconds(
    shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu, own: Few = NATIVE
) -> float:
    """The kernel for few tokens, in as many launches as it needs."""
    units = math.ceil(shape[0] / UNIT_ROWS) * math.ceil(shape[1] / UNIT_COLS)
    clocks = units * own.unit_clocks + nbytes / LINE_BYTES * own.line_clocks
    decode = clocks / (gpu.multiprocessors * gpu.clock)
    total = 0.0
    for begin in range(0, tokens, LAUNCH_TOKENS):
        taken = min(LAUNCH_TOKENS, tokens - begin)
        more = max(0, taken - 8)
        busy = decode * (1 + own.more_token * more)
        total += own.fixed + own.fixed_token * more
        total += max(nbytes / (own.memory * gpu.memory), busy)
    return total


def many_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The wgmma kernel."""
    panels = math.ceil(shape[0] / PANEL) * math.ceil(shape[1] / PANEL)
    clocks = panels * min(
        math.ceil(tokens / wide) * (PANEL_CLOCKS + TOKEN_CLOCKS * wide) for wide in TILE_TOKENS
    )
    product = clocks / (gpu.multiprocessors * gpu.clock)
    return MANY_FIXED + max(nbytes / (MANY_MEMORY * gpu.memory), product)


def rounded_library_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Rounding x, unpacking codes, the product of int8 with int8, and scaling its sums."""
    elements = math.prod(shape)
    padded = INT8_TOKENS * math.ceil(tokens / INT8_TOKENS)
    unpack = (nbytes + elements) / (UNPACK_MEMORY * gpu.memory)
    product = elements / (LIBRARY_MEMORY * gpu.memory)
    product += 2.0 * padded * elements / (INT8_ARITHMETIC * gpu.arithmetic)
    scaling = SCALED_BYTES * tokens * shape[0] / gpu.memory
    return 3 * LAUNCH + LIBRARY_FIXED + unpack + product + scaling
