# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.3.1).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from ....ops import where_kernels_are
from ....packed import PackedWeight, Reference, Scheme, TensorSpec, rules
from ....plan import Plan
from ..storage import UnstructuredStorage
from . import reference
from .ops import ops


class TiledCSL(UnstructuredStorage):
    name = "tiled_csl"
    planner = "tiled_csl"
    version = 1
    tensor_names = streams = ("weight_packed", "tile_offsets")
    piece, entry = (128, 64), "words"
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        return self.stream_specs(scheme, shape)

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            packed = ops.tiled_csl_pack(where_kernels_are(weight.detach()))
        return self.wrap(packed, scheme, weight.shape).to(weight.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        tensors = (packed.tensors[name] for name in self.streams)
        return ops.tiled_csl_unpack(*tensors, *packed.shape, packed.dtype)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        words, offsets = (tensors[name] for name in self.streams)
        most = None if plan is None else plan.sparse_tokens
        return ops.tiled_csl_linear(x, words, offsets, shape[0], scheme.dtype_number, bias, most)
