# SPDX-License-Identifier: Apache-2.0
"""What multiplying an nm_gather weight should cost on a GPU."""

from __future__ import annotations

from ...gpu import BEGIN, ITEMSIZE, LAUNCH, Gpu

LAUNCH_TOKENS = 64  # of one launch of the kernel for few tokens
FEW_TOKENS = 32  # above which that for many is used, if vectors have so many rows:
MANY_ROWS = 16
# Fitted to benchmarks/results/nvidia-h200/nm.csv and nm_values.csv: the share of the bandwidth that
# the weight's stream reaches; seconds of a launch that an early begin hides, but for codes, which
# are widened first; seconds for each token of a launch; bytes of x that a block transposes in a
# clock, and the rows at which each block has to take all of its columns.
STREAM, HIDDEN, ENDS_TOKEN = 0.98, 0.8e-6, 0.13e-6
X_BYTES, X_ROWS = 13.0, 128 * 132
# Of the kernel for many tokens, fitted to launches with 32 rows an index on an H200, to 14%: rows
# and tokens of a tile; of a multiprocessor and clock multiplications, and bytes of shared memory;
# turns that bank conflicts make of one of a gather; the share of all that it reaches; seconds of
# what nothing overlaps. Codes widened in a clock are by calculation: 2 instructions each.
TILE_ROWS, TILE_TOKENS, MMA, SHARED, CONFLICTS = 256, 128, 1000, 128, 1.7
REACH, ENDS_MANY, WIDENED = 0.72, 7.2e-6, 40
# Of the packed kernel, which Hopper has, fitted to nm_packed_sweep.csv of an H200, to 6%: the share
# of the L2's bandwidth that all multiprocessors get at once; by the rows of a tile, which share an
# index, the tokens that it may have.
PACKED_L2 = 0.78
PACKED_TILES = {64: (256, 512), 128: (128, 256)}


def sparse_seconds(
    shape: tuple[int, int], vector_length: int, bits: int, nbytes: int, tokens: int, gpu: Gpu
) -> float:
    """The sparse kernels, in as many launches as they need; blocks read x from the L2.

    Args:
        shape: (out_features, in_features).
        vector_length: Rows that share an index.
        bits: Of a stored value.
        nbytes: Of the packed weight.
        tokens: At least 1.
        gpu: The device.
    """
    if packs(shape[0], vector_length, bits, tokens, gpu):
        return _packed_seconds(shape, vector_length, nbytes, tokens, gpu)
    if tokens > FEW_TOKENS and vector_length >= MANY_ROWS:
        return _many_seconds(shape, vector_length, bits, nbytes, tokens, gpu)
    launch = LAUNCH + BEGIN - (HIDDEN if bits == 16 and gpu.capability == (9, 0) else 0)
    total = 0.0
    for begin in range(0, tokens, LAUNCH_TOKENS):
        taken = min(LAUNCH_TOKENS, tokens - begin)
        share = min(1.0, shape[0] / X_ROWS)
        x = ITEMSIZE * taken * shape[1] * share / (X_BYTES * gpu.clock)
        stream = nbytes / (STREAM * gpu.memory)
        total += launch + ENDS_TOKEN * taken + max(stream, x) + 0.2 * min(stream, x)
    return total


def packs(out_features: int, vector_length: int, bits: int, tokens: int, gpu: Gpu) -> bool:
    """Whether the packed kernel multiplies: packed_pays of kernels/cuda/nm_gather/packed_plan.h."""
    if bits < 16 or vector_length not in PACKED_TILES or gpu.capability != (9, 0):
        return False
    tiles = -(-out_features // 128) * -(-tokens // 128)
    large = tokens > 64 and 2 * tiles >= gpu.multiprocessors
    return tokens > 256 or (vector_length == 128 and large)


def _transposing(tokens: int, in_features: int, gpu: Gpu) -> float:
    return LAUNCH / 2 + 2 * ITEMSIZE * tokens * in_features / gpu.l2


def _packed_seconds(shape: tuple[int, int], rows: int, nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Transposing x, and what comes from the L2: for each tile its rows, and x at their columns."""
    kept = nbytes / ITEMSIZE / shape[0]
    per_multiprocessor = PACKED_L2 * gpu.l2 / gpu.multiprocessors

    def seconds(tile_tokens: int) -> float:
        tiles = -(-shape[0] // rows) * -(-tokens // tile_tokens)
        rounds = -(-tiles // gpu.multiprocessors)
        return rounds * ITEMSIZE * kept * (rows + tile_tokens) / per_multiprocessor

    own = min(map(seconds, PACKED_TILES[rows]))
    return LAUNCH + BEGIN + _transposing(tokens, shape[1], gpu) + own


def _many_seconds(
    shape: tuple[int, int], vector_length: int, bits: int, nbytes: int, tokens: int, gpu: Gpu
) -> float:
    """Transposing x, and the longest of arithmetic, shared memory and the weight's streams."""
    out_features, in_features = shape
    wide = 64 if tokens <= 64 else TILE_TOKENS
    padded = -(-tokens // wide) * wide
    values, tiles = nbytes * 8 / bits, padded / wide  # along the tokens
    products = values * padded
    gathered = ITEMSIZE * CONFLICTS * products / min(vector_length, 64)
    weights = nbytes * tiles
    widening = values * tiles / WIDENED if bits < 16 else 0.0
    x_tiles = ITEMSIZE * padded * in_features * max(out_features / TILE_ROWS, 1.0)
    clocks = max(products / MMA + widening, (gathered + 2 * weights + x_tiles) / SHARED)
    longest = max(
        clocks / (gpu.multiprocessors * gpu.clock),
        weights / gpu.l2,
        nbytes / gpu.memory,
    )
    transposing = _transposing(tokens, in_features, gpu)
    return LAUNCH + BEGIN + ENDS_MANY + transposing + longest / REACH
