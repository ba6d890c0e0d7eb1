# SPDX-License-Identifier: Apache-2.0
"""The form in which every unstructured format runs on a CPU; never written to disk.

One mask bit a weight and the bits of each kept value, 16 rows by 2 columns to a mask word, so that
one expanded word is one operand of the CPU's dot-product instruction. Against Tiled-CSL it is
smaller below 93.75% sparsity. Codes lie in the place of values, with a scale for each row beside
them. The bit layout is in kernels/formats/interleaved_bitmap.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....packed import PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Plan
from ...values.coded import SCALE, value_options
from ...values.dtypes import value_bits
from ..form import UnstructuredFormat
from ..options import BitmapOptions
from . import reference
from .ops import ops


class InterleavedBitmap(UnstructuredFormat):
    name = "interleaved_bitmap"
    in_words = "unstructured zeros, CPU"
    version = 1
    on_disk = False
    Options = BitmapOptions
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    streams = ("values", "masks", "panel_offsets")
    tensor_names = (*streams, SCALE)
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def examples(self) -> tuple[Scheme, ...]:
        return (*super().examples(), self.scheme(torch.float16, {"values": "int8"}))

    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        panels, codes = -(-shape[0] // 16), value_options(scheme).value_type
        stored = value_bits(scheme.dtype) if codes is None else torch.int8
        return {
            "values": TensorSpec(stored, (None,)),
            "masks": TensorSpec(torch.int32, (panels, -(-shape[1] // 2))),
            "panel_offsets": TensorSpec(torch.int64, (panels + 1,)),
        }

    def within_reach(self, tensor: Tensor) -> Tensor:
        return tensor.cpu()

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> Tensor:
        return ops.interleaved_bitmap_linear(
            x,
            tensors["values"],
            tensors["masks"],
            tensors["panel_offsets"],
            shape[0],
            scheme.dtype_number,
            bias,
            tensors.get(SCALE),
        )

    def check(self, packed: PackedWeight) -> None:
        self.check_scales(packed)
        tensors = (packed.tensors[name].detach().cpu() for name in self.streams)
        ops.interleaved_bitmap_validate(*tensors, *packed.shape)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(packed.tensors["panel_offsets"][-1])
