# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.2).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..ops import STATUS, ops
from ..packed import Format, PackedWeight
from .interleaved_bitmap import INTERLEAVED_BITMAP


class TiledCSL(Format):
    name = "tiled_csl"
    version = 1
    dtypes = {"weight_packed": torch.int32, "tile_offsets": torch.int32}
    stream = "weight_packed"

    def pack(self, weight: Tensor) -> PackedWeight:
        self.require_weight(weight)
        words, offsets = ops.tiled_csl_pack(_where_kernels_are(weight.detach()))
        tensors = {"weight_packed": words, "tile_offsets": offsets}
        return PackedWeight(self, tensors, tuple(weight.shape), weight.dtype).to(weight.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        words, offsets = (packed.tensors[name] for name in self.tensor_names)
        return ops.tiled_csl_unpack(words, offsets, *packed.shape, packed.dtype)

    def linear(
        self,
        x: Tensor,
        tensors: Mapping[str, Tensor],
        out_features: int,
        weight_dtype: torch.dtype,
        bias: Tensor | None,
        sparse_tokens: int | None = None,
    ) -> Tensor:
        return ops.tiled_csl_linear(
            x,
            tensors["weight_packed"],
            tensors["tile_offsets"],
            out_features,
            weight_dtype,
            bias,
            sparse_tokens,
        )

    def check(self, packed: PackedWeight) -> None:
        self.require_tensors(packed)
        self._validate(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self._validate(packed))

    def runtime(self, device: torch.device) -> Format:
        return INTERLEAVED_BITMAP if device.type == "cpu" else self

    def transcode(self, packed: PackedWeight, target: Format) -> PackedWeight:
        if target is not INTERLEAVED_BITMAP:
            return super().transcode(packed, target)
        words, offsets = (packed.tensors[name] for name in self.tensor_names)
        tensors = ops.tiled_csl_to_interleaved_bitmap(words, offsets, *packed.shape)
        return INTERLEAVED_BITMAP.wrap(tensors, packed.shape, packed.dtype)

    def _validate(self, packed: PackedWeight) -> Tensor:
        words, offsets = (
            _where_kernels_are(packed.tensors[name].detach()) for name in self.tensor_names
        )
        return ops.tiled_csl_validate(words, offsets, *packed.shape)


def _where_kernels_are(tensor: Tensor) -> Tensor:
    """The tensor on its own device if that has kernels, else on the CPU: the results are equal."""
    return tensor if tensor.is_cuda and STATUS["_C_cuda"].loaded else tensor.cpu()
