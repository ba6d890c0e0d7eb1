# SPDX-License-Identifier: Apache-2.0
"""The form in which every unstructured format runs on a CPU; never written to disk.

One mask bit a weight and 16 bits a kept value, 16 rows by 2 columns to a mask word, so that one
expanded word is one operand of the CPU's dot-product instruction. Against Tiled-CSL it is smaller
below 93.75% sparsity. The bit layout is in kernels/formats/interleaved_bitmap.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..ops import ops
from ..packed import Format, PackedWeight


class InterleavedBitmap(Format):
    name = "interleaved_bitmap"
    version = 1
    on_disk = False
    dtypes = {"values": torch.int16, "masks": torch.int32, "panel_offsets": torch.int64}
    stream = "values"

    def wrap(
        self, tensors: Sequence[Tensor], shape: tuple[int, int], dtype: torch.dtype
    ) -> PackedWeight:
        """Names the tensors that an op returned."""
        named = dict(zip(self.tensor_names, tensors, strict=True))
        return PackedWeight(self, named, tuple(shape), dtype)

    def pack(self, weight: Tensor) -> PackedWeight:
        self.require_weight(weight)
        tensors = ops.interleaved_bitmap_pack(weight.detach())
        return self.wrap(tensors, weight.shape, weight.dtype)

    def unpack(self, packed: PackedWeight) -> Tensor:
        tensors = (packed.tensors[name] for name in self.tensor_names)
        return ops.interleaved_bitmap_unpack(*tensors, *packed.shape, packed.dtype)

    def linear(
        self,
        x: Tensor,
        tensors: Mapping[str, Tensor],
        out_features: int,
        weight_dtype: torch.dtype,
        bias: Tensor | None,
        sparse_tokens: int | None = None,  # there is one implementation
    ) -> Tensor:
        return ops.interleaved_bitmap_linear(
            x,
            tensors["values"],
            tensors["masks"],
            tensors["panel_offsets"],
            out_features,
            weight_dtype,
            bias,
        )

    def check(self, packed: PackedWeight) -> None:
        self.require_tensors(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(packed.tensors["panel_offsets"][-1])


INTERLEAVED_BITMAP = InterleavedBitmap()
