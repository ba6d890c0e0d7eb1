# SPDX-License-Identifier: Apache-2.0
"""What multiplying a sparse_24 weight should cost."""

from __future__ import annotations

import math

from ...gpu import BEGIN, LAUNCH, Gpu

# Fitted to benchmarks/results/nvidia-h200, nm.csv and nm_values.csv, in which it begins early
# behind the same product: the share of the bandwidth that it reaches; seconds beside the bytes (the
# first x, the last sums), and for each token of a launch; turns of shared memory for each token of
# a unit of 16 rows x 256 columns, and a second.
MEMORY, FIXED, TOKEN = 0.98, 0.2e-6, 0.09e-6
UNIT, TOKEN_TURNS, TURNS = 16 * 256, 3, 1.23e9
TURN_BYTES = 64  # of a unit: 128 are written in a turn, and read in another
WIDENING = 8.3e-9  # seconds to widen the codes of a unit that nothing hides
# Of codes of 8 bits the tile of 32 tokens, however many there are, fitted to sparse_24_ring.csv:
# seconds, and how much longer than the bytes.
TILE_32, TILE_32_BYTES = 10.2e-6, 1.16

# Of the wgmma kernel, fitted to nm.csv and steps.csv (before it began early) of an H200: the share
# of the bandwidth, and of the clock under load, of codes less; bytes a clock from the L2; seconds
# beside, and of native values for up to 64 tokens, since it begins early. Tiles that it is compiled
# for: tokens, and warpgroups of 64 rows each.
WGMMA_MEMORY, WGMMA_CLOCK, CODES_CLOCK, L2_CLOCK, WGMMA_FIXED = 0.9, 0.91, 0.78, 28, 4.6e-6
EARLY_TOKENS, EARLY_FIXED = 64, 2.5e-6
GROUP_ROWS = 64
TILES = (
    (64, 2), (64, 3), (64, 4), (96, 2), (96, 3), (128, 2), (128, 3), (160, 2), (192, 2), (224, 2),
    (256, 2),
)  # fmt: skip
CODES_TILES = ((96, 4), (144, 3))  # and these of codes
# Elements of a layer that counts as small, and of one of codes; and the clocks of a panel of codes
# that warpgroups need however few the tokens, as in kernels/cuda/sparse_24/wgmma_plan.cpp.
SMALL, SMALL_CODES, CODES_PANEL, CODES_GROUP = 32 << 20, 96 << 20, 200, 80

# The same of up to 64 tokens and codes of 8 bits with scales of rows, some of whose tiles have
# their weights in a ring: fitted to what is planned of sparse_24_ring.csv, which it meets by 4% on
# average.
RING_TOKENS, RING_PANEL, RING_GROUP = 64, 312, 70
RING_MEMORY, RING_CLOCK, RING_FIXED = 0.85, 0.82, 3.0e-6
RING_TILES = ((32, 4), (32, 5), (64, 3), (64, 4))


def sparse_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The sparse kernels, by the one that the op takes where no plan says which."""
    # As few_tokens in kernels/cuda/sparse_24/wgmma_plan.h.
    small = SMALL_CODES if _codes(shape, nbytes) else SMALL
    early = math.prod(shape) <= small or _eight_bits(shape, nbytes)
    if gpu.capability == (9, 0) and tokens > (16 if early else 32):
        return wgmma_seconds(shape, nbytes, tokens, gpu)
    return mma_seconds(shape, nbytes, tokens, gpu)


def wgmma_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """The wgmma kernel, by the best of its tiles (budget: kernels/cuda/sparse_24/wgmma.cuh)."""
    if tokens <= RING_TOKENS and _eight_bits(shape, nbytes):
        return _ring_seconds(shape, nbytes, tokens, gpu)
    found = []
    for width, groups in TILES + (CODES_TILES if _codes(shape, nbytes) else ()):
        # Of a panel of 64 columns: clocks of shared memory for B, x and the weight, and of the L2
        # for the weight and for x, which two blocks share.
        weight = groups * GROUP_ROWS * 64 * nbytes / math.prod(shape)
        x = min(width, tokens) * 128
        clocks = max((groups + 1) * width + weight / 128, (weight + x / 2) / L2_CLOCK)
        if _codes(shape, nbytes):
            clocks = max(clocks, width + CODES_PANEL + CODES_GROUP * groups)
        blocks = -(-shape[0] // (groups * GROUP_ROWS)) * -(-tokens // width)
        turns = blocks / gpu.multiprocessors
        # Whole tiles to each block where there are many, else blocks share them.
        turns = math.ceil(turns) if turns > 1.8 else 1.05 * max(turns, 0.3)
        found.append(turns * clocks * shape[1] / 64)
    clock = (CODES_CLOCK if _codes(shape, nbytes) else WGMMA_CLOCK) * gpu.clock
    product = min(found) / clock
    early = tokens <= EARLY_TOKENS and not _codes(shape, nbytes)
    fixed = LAUNCH + BEGIN + (EARLY_FIXED if early else WGMMA_FIXED)
    return fixed + max(nbytes / (WGMMA_MEMORY * gpu.memory), product)


def _ring_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    found = []
    for width, groups in RING_TILES:
        if width < tokens:
            continue
        clocks = width + RING_PANEL + RING_GROUP * groups
        turns = -(-shape[0] // (groups * GROUP_ROWS)) / gpu.multiprocessors
        turns = math.ceil(turns) if turns > 1.8 else 1.05 * max(turns, 0.15)
        found.append(turns * clocks * shape[1] / 64)
    product = min(found) / (RING_CLOCK * gpu.clock)
    return LAUNCH + BEGIN + RING_FIXED + max(nbytes / (RING_MEMORY * gpu.memory), product)


def mma_seconds(
    shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu, x_bytes: int = 2
) -> float:
    """The mma kernel, in as many launches as it needs; x_bytes of an element of x, 1 of codes."""
    total, codes = 0.0, _codes(shape, nbytes)
    # Blocks of 99 KB of shared memory have room for x of 32 tokens; so many are compiled for codes.
    has_room = gpu.capability in ((8, 0), (9, 0), (10, 0))
    launch_tokens = 64 if (has_room and not codes) or x_bytes == 1 else 32
    units = math.prod(shape) / UNIT / gpu.multiprocessors
    weight_turns = nbytes / TURN_BYTES / gpu.multiprocessors
    for begin in range(0, tokens, launch_tokens):
        taken = min(launch_tokens, tokens - begin)
        if not codes and 16 < taken < 32:
            taken = 32  # as many as the tile has
        if x_bytes == 2 and taken > 16 and _eight_bits(shape, nbytes):
            total += LAUNCH + BEGIN + TILE_32 + TILE_32_BYTES * nbytes / (MEMORY * gpu.memory)
            continue
        shared = (weight_turns + units * TOKEN_TURNS * taken * x_bytes / 2) / TURNS
        widens = codes and x_bytes == 2
        total += LAUNCH + BEGIN + FIXED + TOKEN * taken + (units * WIDENING if widens else 0)
        total += max(nbytes / (MEMORY * gpu.memory), shared)
    return total


def _codes(shape: tuple[int, int], nbytes: int) -> bool:
    """Whether values are codes: those have less than 8 bits a weight, positions included."""
    return nbytes < math.prod(shape)


def _eight_bits(shape: tuple[int, int], nbytes: int) -> bool:
    """Whether values are codes of 8 bits with scales of rows: others have other bits a weight."""
    return 0.5 < nbytes / math.prod(shape) < 0.638


# Of codes on both sides, fitted to fp8_e4m3 in benchmarks/results/nvidia-h200/nm_values.csv, which
# it meets by 10% on average: seconds beside the bytes, rounding x among them, and the share of the
# bandwidth.
# Products were not what bound up to 64 tokens; their share of the tensor cores' peak is a guess.
# int8 has the same bytes and the same peak.
ROUNDED_FIXED, ROUNDED_MEMORY, ROUNDED_PRODUCTS, ROUNDED_PEAK = 7.0e-6, 0.86, 0.6, 16384
ROUNDING = LAUNCH + BEGIN  # of the kernel that rounds x, where the product waits for its end


def rounded_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """sparse_24_linear_rounded. Only that on Hopper was measured."""
    if gpu.capability != (9, 0):
        return ROUNDING + mma_seconds(shape, nbytes, tokens, gpu, x_bytes=1)
    peak = ROUNDED_PEAK * gpu.multiprocessors * gpu.clock  # operations, zeros counted
    products = 2 * math.prod(shape) * tokens / (ROUNDED_PRODUCTS * peak)
    return ROUNDED_FIXED + max(nbytes / (ROUNDED_MEMORY * gpu.memory), products)
