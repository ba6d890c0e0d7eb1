# SPDX-License-Identifier: Apache-2.0
"""The form in which nm_vector runs on CUDA where 8 rows or more share their columns; never on disk.

Values lie as tensor cores take them, and an index byte is the address of a row of x (NM-SpMM,
section III: the gather). The layout is drawn in kernels/formats/nm_gather.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu
from ...packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...plan import Plan
from ..nm_pattern import PatternOptions, options_of
from ..pattern_form import CudaPatternForm
from . import cost, reference
from .layout import PAIR, Layout, panel_columns
from .ops import ops


class NMGather(CudaPatternForm):
    name = "nm_gather"
    holds = (
        "vectors of 8 rows or more, in windows of which the fewest with a multiple of 16 kept "
        "columns are not wider than 256 columns"
    )
    sparse = "kernels that gather x by ldmatrix"
    tensor_names = ("gather_values", "gather_index")
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return (
            options.value_type is None and options.vector_length >= 8 and panel_columns(options) > 0
        )

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 8, "m": 32, "vector_length": 64},
            {"n": 2, "m": 4, "vector_length": 8},
            {"n": 3, "m": 12, "vector_length": 16},  # panels of 192 columns and 3 steps
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        layout = self._layout(scheme, shape)
        values = (layout.units, layout.pairs, layout.unit_rows * PAIR)
        return {
            "gather_values": TensorSpec(torch.int16, values),
            "gather_index": TensorSpec(torch.uint8, (layout.groups, layout.pairs, PAIR)),
        }

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        made = self._layout(scheme, shape).arrange(stored["weight_packed"], stored["weight_index"])
        return PackedWeight(scheme, shape, dict(zip(self.tensor_names, made, strict=True)))

    def unpack(self, packed: PackedWeight) -> Tensor:
        values, index = (packed.tensors[name] for name in self.tensor_names)
        pattern = options_of(packed.scheme).numbers
        return ops.nm_gather_unpack(values, index, *packed.shape, *pattern, packed.dtype)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        values, index = (tensors[name] for name in self.tensor_names)
        sparse_tokens = None if plan is None else plan.most("sparse")
        return ops.nm_gather_linear(
            x,
            values,
            index,
            shape[0],
            *options_of(scheme).numbers,
            scheme.dtype,
            bias,
            sparse_tokens,
        )

    def check(self, packed: PackedWeight) -> None:
        values, index = (packed.tensors[name].detach() for name in self.tensor_names)
        complaint = self._layout(packed.scheme, packed.shape).complaint(values, index)
        if complaint:
            raise FormatError(complaint)

    def nonzeros(self, packed: PackedWeight) -> int:
        values = packed.tensors["gather_values"]
        return sum(int((unit & 0x7FFF).count_nonzero()) for unit in values.split(1 << 10))

    def sparse_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        length = options_of(scheme).vector_length
        return cost.sparse_seconds(shape, length, nbytes, tokens, gpu)

    def _layout(self, scheme: Scheme, shape: tuple[int, int]) -> Layout:
        return Layout(self.require_fit(scheme, shape), shape)
