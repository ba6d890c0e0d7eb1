# SPDX-License-Identifier: Apache-2.0
"""The form in which every unstructured format runs on a CPU; never written to disk.

One mask bit a weight and the bits of each kept value, 16 rows by 2 columns to a mask word, so that
one expanded word is one operand of the CPU's dot-product instruction. Against Tiled-CSL it is
smaller below 93.75% sparsity. Codes lie in the place of values, with a scale for each row beside
them. The bit layout is in kernels/formats/interleaved_bitmap.h.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ....packed import Reference, Scheme, TensorSpec
from ...values.dtypes import value_bits
from ...values.quantization import SCALE
from ..form import UnstructuredFormat
from ..options import BitmapOptions
from . import reference
from .ops import ops


class InterleavedBitmap(UnstructuredFormat):
    name = "interleaved_bitmap"
    in_words = "unstructured zeros, CPU"
    version = 1
    on_disk = False
    checks_as_it_reads = False
    Options = BitmapOptions
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    streams = ("values", "masks", "panel_offsets")
    tensor_names = (*streams, SCALE)
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops
    linear_op = ops.interleaved_bitmap_linear

    def examples(self) -> tuple[Scheme, ...]:
        return (*super().examples(), self.scheme(torch.float16, {"values": "int8"}))

    def stream_specs(self, scheme: Scheme, shape: tuple[int, int]) -> tuple[TensorSpec, ...]:
        panels = -(-shape[0] // 16)
        stored = value_bits(scheme.dtype) if scheme.quantization is None else torch.int8
        return (
            TensorSpec(stored, (None,)),
            TensorSpec(torch.int32, (panels, -(-shape[1] // 2))),
            TensorSpec(torch.int64, (panels + 1,)),
        )

    def within_reach(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu()
