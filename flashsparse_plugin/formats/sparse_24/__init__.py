# SPDX-License-Identifier: Apache-2.0
"""The form in which a pattern that keeps two of every four columns runs on sparse tensor cores.

2:4, and whatever embeds in it: 1:4, 1:2, at most two of a longer window of whole fours. Values and
positions lie as the instruction takes them, in 9 bits a weight. Never written to disk. The layout
is in kernels/formats/sparse_24.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu
from ...packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...plan import Plan
from ..nm_pattern import PatternOptions
from ..pattern_form import CudaPatternForm
from . import cost, layout, reference
from .ops import ops


class Sparse24(CudaPatternForm):
    name = "sparse_24"
    holds = "patterns that keep at most two of every four aligned columns"
    sparse = "sparse tensor cores"
    tensor_names = ("units",)
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.value_type is None and options.embeds_in_24

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 2, "m": 4},
            {"n": 1, "m": 2, "vector_length": 4},
            {"n": 2, "m": 8, "vector_length": 2},
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        return {"units": TensorSpec(torch.int32, (*layout.unit_grid(*shape), layout.UNIT_WORDS))}

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        options = self.require_fit(scheme, shape)
        units = layout.arrange(stored["weight_packed"], stored["weight_index"], shape, options)
        return PackedWeight(scheme, shape, {"units": units})

    def unpack(self, packed: PackedWeight) -> Tensor:
        return ops.sparse_24_unpack(packed.tensors["units"], *packed.shape, packed.dtype)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        most = None if plan is None else plan.most("sparse")
        return ops.sparse_24_linear(x, tensors["units"], shape[0], scheme.dtype, bias, most)

    def check(self, packed: PackedWeight) -> None:
        """No word is an address; but positions that do not rise are undefined behaviour of mma."""
        units = packed.tensors["units"]
        for slab in layout.slabs(len(units), units.shape[1] * layout.UNIT_COLS):
            lower, upper = layout.places_of(units[slab]).unbind(-1)
            wrong = (lower >= upper).nonzero()
            if len(wrong):
                down, across, line, four = wrong[0].tolist()
                row = (slab.start + down) * layout.UNIT_ROWS + line
                column = across * layout.UNIT_COLS + 4 * four
                raise FormatError(
                    f"the two positions of row {row}, columns {column} to {column + 3}, do not rise"
                )

    def nonzeros(self, packed: PackedWeight) -> int:
        units = packed.tensors["units"]
        found = 0
        for slab in layout.slabs(len(units), units.shape[1] * layout.UNIT_COLS):
            words = units[slab, :, : layout.VALUE_WORDS]
            found += int((words & 0x7FFF).count_nonzero() + (words >> 16 & 0x7FFF).count_nonzero())
        return found

    def sparse_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        return cost.sparse_seconds(shape, nbytes, tokens, gpu)
