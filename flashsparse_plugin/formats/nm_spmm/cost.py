# SPDX-License-Identifier: Apache-2.0
"""What multiplying an nm_spmm weight should cost on a GPU: by the paper's analysis."""

from __future__ import annotations

from ...gpu import BEGIN, LAUNCH, LIBRARY_FIXED, LIBRARY_MEMORY, Gpu
from ..nm_pattern import PatternOptions
from ..pattern_form import UNPACK_MEMORY
from .analysis import ITEMSIZE, TABLE_I, WIDE, Blocking, attainable, should_pack, used_share
from .layout import BLOCK

FEW = (Blocking(8, 128, 8, 4), Blocking(16, 128, 16, 4))
CHOICES = (*FEW, *TABLE_I.values(), WIDE)
# Estimates: shares that an inner product and the library reach of what is possible.
REACH, LIBRARY_REACH = 0.88, 0.75


def sparse_seconds(
    options: PatternOptions, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
) -> float:
    """The sparse kernel, by the best of its blockings, after a launch that transposes x."""
    x_bytes = 2 * ITEMSIZE * tokens * shape[1]
    product = min(_product(each, options, shape, tokens, gpu) for each in CHOICES)
    return 2 * LAUNCH + 2 * BEGIN + x_bytes / gpu.memory + max(nbytes / gpu.memory, product)


def _product(
    blocking: Blocking, options: PatternOptions, shape: tuple[int, int], tokens: int, gpu: Gpu
) -> float:
    tiles = -(-tokens // blocking.tokens) * -(-shape[0] // blocking.rows)
    kept = shape[1] * options.n / options.m
    packed = should_pack(options, BLOCK)
    used = shape[1] * (used_share(options, BLOCK) if packed else 1)
    rate = attainable(
        blocking.intensity(used, kept), gpu.l2, REACH * blocking.reach(gpu) * gpu.float32_peak
    )
    return 2 * tiles * blocking.tokens * blocking.rows * kept / rate


def library_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Unpacking, and the library's float32 product."""
    dense = ITEMSIZE * shape[0] * shape[1]
    unpack = LAUNCH + (nbytes + dense) / (UNPACK_MEMORY * gpu.memory)
    arithmetic = 2.0 * tokens * shape[0] * shape[1] / (LIBRARY_REACH * gpu.float32_peak)
    return unpack + LIBRARY_FIXED + max(dense / (LIBRARY_MEMORY * gpu.memory), arithmetic)
