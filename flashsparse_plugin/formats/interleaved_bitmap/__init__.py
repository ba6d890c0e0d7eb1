# SPDX-License-Identifier: Apache-2.0
"""The form in which every unstructured format runs on a CPU; never written to disk.

One mask bit a weight and the bits of each kept value, 16 rows by 2 columns to a mask word, so that
one expanded word is one operand of the CPU's dot-product instruction. Against Tiled-CSL it is
smaller below 93.75% sparsity. The bit layout is in kernels/formats/interleaved_bitmap.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...packed import PackedWeight, Reference, Scheme, TensorSpec, rules
from ...plan import Plan
from ..unstructured_form import UnstructuredFormat
from ..values import value_bits
from . import reference
from .ops import ops


class InterleavedBitmap(UnstructuredFormat):
    name = "interleaved_bitmap"
    version = 1
    on_disk = False
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    tensor_names = ("values", "masks", "panel_offsets")
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        panels = -(-shape[0] // 16)
        return {
            "values": TensorSpec(value_bits(scheme.dtype), (None,)),
            "masks": TensorSpec(torch.int32, (panels, -(-shape[1] // 2))),
            "panel_offsets": TensorSpec(torch.int64, (panels + 1,)),
        }

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            tensors = ops.interleaved_bitmap_pack(weight.detach().cpu())
        return self.wrap(tensors, scheme, weight.shape).to(weight.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        tensors = (packed.tensors[name].cpu() for name in self.tensor_names)
        weight = ops.interleaved_bitmap_unpack(*tensors, *packed.shape, packed.dtype)
        return weight.to(packed.device)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,  # there is one implementation
    ) -> Tensor:
        return ops.interleaved_bitmap_linear(
            x,
            tensors["values"],
            tensors["masks"],
            tensors["panel_offsets"],
            shape[0],
            scheme.dtype,
            bias,
        )

    def check(self, packed: PackedWeight) -> None:
        tensors = (packed.tensors[name].detach().cpu() for name in self.tensor_names)
        ops.interleaved_bitmap_validate(*tensors, *packed.shape)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(packed.tensors["panel_offsets"][-1])
