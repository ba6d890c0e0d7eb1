# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.3.1).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...gpu import Gpu
from ...packed import Reference
from ..unstructured_storage import UnstructuredStorage
from . import cost, reference
from .ops import ops


class TiledCSL(UnstructuredStorage):
    name = "tiled_csl"
    version = 1
    tensor_names = ("weight_packed", "tile_offsets")
    piece, entry = (128, 64), "words"
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def sparse_seconds(self, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
        return cost.sparse_seconds(shape, nbytes, tokens, gpu)
