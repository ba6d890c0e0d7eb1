# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.3.1).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ....packed import Reference
from ..form import UnstructuredFormat
from ..interleaved_bitmap import InterleavedBitmap
from ..pieces import Pieces
from . import reference
from .ops import ops


class TiledCSL(UnstructuredFormat):
    name = "tiled_csl"
    in_words = "unstructured zeros, Tiled-CSL"
    planner = "tiled_csl"
    version = 1
    tensor_names = streams = ("weight_packed", "tile_offsets")
    pieces = Pieces(128, 64, "words")
    on_cpu = InterleavedBitmap()
    sparse = "the sparse kernel of tiled_csl"
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops
    linear_op = ops.tiled_csl_linear
    limits = 1
