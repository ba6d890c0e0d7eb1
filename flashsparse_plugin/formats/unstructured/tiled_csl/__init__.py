# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.3.1).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from ....packed import Reference, Scheme
from ....plan import Plan
from ..storage import UnstructuredStorage
from . import reference
from .ops import ops


class TiledCSL(UnstructuredStorage):
    name = "tiled_csl"
    in_words = "unstructured zeros, Tiled-CSL"
    planner = "tiled_csl"
    version = 1
    tensor_names = streams = ("weight_packed", "tile_offsets")
    piece, entry = (128, 64), "words"
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        words, offsets = (tensors[name] for name in self.streams)
        most = None if plan is None else plan.sparse_tokens
        return ops.tiled_csl_linear(x, words, offsets, shape[0], scheme.dtype_number, bias, most)
