# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors' `pack-quantized`: int32 words of eight 4-bit or four 8-bit codes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...formats.values.types import VALUE_TYPES
from ...packed import dtype_name
from .codes import CodeLayout, Codes, each_row, signed
from .quantization import Arguments

_SIZES = (torch.int32, torch.int64)


class PackQuantized(CodeLayout):
    """`weight_packed` int32 [rows, words], `weight_shape` (rows, columns) and `weight_scale`.

    The first code is in the lowest bits, each with half of its range added.
    """

    name = "pack-quantized"

    def has(self, parts: set[str]) -> bool:
        return parts == {"weight_packed", "weight_shape", self.scale}

    def describe(self, layer: str, tensors: Mapping[str, Tensor], arguments: Arguments) -> Codes:
        packed, stated = tensors["weight_packed"], tensors["weight_shape"]
        if stated.is_meta or stated.dtype not in _SIZES or stated.numel() != 2:
            self.refuse(layer, packed.shape, "its weight_shape is no integer tensor of two sizes")
        rows, columns = stated.flatten().tolist()
        bits = arguments.num_bits
        if arguments.type != "int":
            self.refuse(layer, (rows, columns), "config.json has codes that are no integers")
        words = [rows, -(-columns * bits // 32)]
        if min(rows, columns) < 1 or packed.dtype != torch.int32 or [*packed.shape] != words:
            self.refuse(
                layer,
                (rows, columns),
                f"its weight_packed is {dtype_name(packed.dtype)} {list(packed.shape)}, and not "
                f"int32 {words} for int{bits} codes",
            )
        group = self.group_of(layer, (rows, columns), tensors[self.scale], arguments)
        return Codes((rows, columns), f"int{bits}", group, tensors[self.scale].dtype)

    def read(
        self, layer: str, tensors: Mapping[str, Tensor], codes: Codes
    ) -> tuple[Tensor, Tensor]:
        rows, columns = codes.shape
        weight = signed(tensors["weight_packed"], VALUE_TYPES[codes.values].bits)[:, :columns]
        scales = tensors[self.scale]
        return weight, each_row(scales, rows) if codes.group is None else scales
