# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors' `float-quantized`, `int-quantized` and `naive-quantized`: bytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...packed import dtype_name
from .codes import CodeLayout, Codes, each_row
from .layout import Layout
from .quantization import Arguments

_VALUES = {torch.float8_e4m3fn: "fp8_e4m3", torch.int8: "int8"}
_ZERO_POINT = "weight_zero_point"


class EightBits(CodeLayout):
    """`weight` [rows, columns] of float8_e4m3fn or int8, and `weight_scale`.

    The weight itself may be kept in a layout of zeros. Early releases wrote zero points of
    symmetric codes too: zeros.

    Args:
        zeros: The layout of zeros; None where the weight is there as it is.
    """

    name = "8-bit codes"

    def __init__(self, zeros: Layout | None = None):
        self.zeros = zeros
        self.parts = {*(zeros.parts if zeros else ("weight",)), self.scale}

    def has(self, parts: set[str]) -> bool:
        return parts - {_ZERO_POINT} == self.parts

    def describe(self, layer: str, tensors: Mapping[str, Tensor], arguments: Arguments) -> Codes:
        if self.zeros is None:
            weight = tensors["weight"]
            shape, dtype = tuple(weight.shape), weight.dtype
        else:
            shape = self.zeros.shape(layer, tensors, dtypes=(*_VALUES,))
            dtype = tensors["compressed"].dtype
        kind = "float" if dtype == torch.float8_e4m3fn else "int"
        if dtype not in _VALUES or arguments.type != kind or len(shape) != 2 or min(shape) < 1:
            self.refuse(
                layer,
                shape,
                f"its weight is {dtype_name(dtype)}, and config.json has {arguments.type}"
                f"{arguments.num_bits} codes of a matrix",
            )
        rows, columns = shape
        group = self.group_of(layer, (rows, columns), tensors[self.scale], arguments)
        return Codes((rows, columns), _VALUES[dtype], group, tensors[self.scale].dtype)

    def read(
        self, layer: str, tensors: Mapping[str, Tensor], codes: Codes
    ) -> tuple[Tensor, Tensor]:
        zero_point = tensors.get(_ZERO_POINT)
        if zero_point is not None and bool((zero_point.float() != 0).any()):
            self.refuse(layer, codes.shape, "it has zero points, and asymmetric codes are not read")
        if self.zeros is None:
            weight = tensors["weight"]
        else:
            weight = self.zeros.dense(layer, tensors, dtypes=(*_VALUES,))
        if weight.dtype == torch.float8_e4m3fn and _has_nan(weight):
            self.refuse(layer, codes.shape, "its weight has NaN, which are no fp8_e4m3 numbers")
        scales = tensors[self.scale]
        return weight, each_row(scales, codes.shape[0]) if codes.group is None else scales


def _has_nan(codes: Tensor) -> bool:
    """Whether float8_e4m3fn codes have NaN, whose bits but the sign are all ones."""
    return bool((codes.view(torch.uint8) & 0x7F == 0x7F).any())
