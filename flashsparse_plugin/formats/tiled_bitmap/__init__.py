# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap: one bit a weight and the 16 bits of each kept value, in units of 16 x 256 weights.

The bit layout is in kernels/formats/tiled_bitmap.h and docs/tiled_bitmap.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...gpu import Gpu
from ...packed import Reference
from ..unstructured_storage import UnstructuredStorage
from . import cost, reference
from .ops import ops


class TiledBitmap(UnstructuredStorage):
    name = "tiled_bitmap"
    version = 1
    tensor_names = ("weight_packed", "unit_offsets")
    piece, entry, entry_shape = (16, 256), "lines", (32,)
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def sparse_seconds(self, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
        return cost.sparse_seconds(shape, nbytes, tokens, gpu)
