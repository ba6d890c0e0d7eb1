# SPDX-License-Identifier: Apache-2.0
"""What multiplying an nm_vector weight in its storage form should cost on a GPU."""

from __future__ import annotations

import math

from ...gpu import LAUNCH, Gpu, library_seconds

UNPACK_MEMORY = 0.6  # share of the bandwidth that unpacking reaches: scattered writes


def unpacked_seconds(
    shape: tuple[int, int], itemsize: int, nbytes: int, tokens: int, gpu: Gpu
) -> float:
    """Unpacking, and the library's product."""
    moved = nbytes + math.prod(shape) * itemsize
    return moved / (UNPACK_MEMORY * gpu.memory) + LAUNCH + library_seconds(shape, tokens, gpu)
