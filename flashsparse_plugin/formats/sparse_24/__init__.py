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

from ...gpu import Gpu, unpacked_seconds
from ...packed import Format, FormatError, PackedWeight, Reference, Scheme, TensorSpec, rules
from ...plan import Implementation, Plan
from ..nm_pattern import PatternOptions, options_of, pack_vectors
from . import cost, layout, reference
from .ops import ops


class Sparse24(Format):
    name = "sparse_24"
    version = 1
    on_disk = False
    Options = PatternOptions
    tensor_names = ("units",)
    reference: ClassVar[Reference] = reference

    @staticmethod
    def fits(options: PatternOptions) -> bool:
        """Whether the form can hold a pattern: at most two of every four aligned columns."""
        return options.embeds_in_24

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 2, "m": 4},
            {"n": 1, "m": 2, "vector_length": 4},
            {"n": 2, "m": 8, "vector_length": 2},
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return options_of(scheme).keep_largest(weight)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        return {"units": TensorSpec(torch.int32, (*layout.unit_grid(*shape), layout.UNIT_WORDS))}

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            stored = pack_vectors(weight.detach().cpu(), options_of(scheme))
        values, index = (tensor.to(weight.device) for tensor in stored)
        return self.arrange(values, index, scheme, (weight.shape[0], weight.shape[1]))

    def arrange(
        self, weight_packed: Tensor, weight_index: Tensor, scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the storage tensors of nm_vector, where they are.

        Raises:
            FormatError: For a pattern that may keep more than two of four columns.
        """
        options = options_of(scheme)
        if not options.embeds_in_24:
            raise FormatError(
                f"{self.name} holds patterns that keep at most two of every four columns, and "
                f"{options.title} may keep more: leave the layer in another form"
            )
        units = layout.arrange(weight_packed, weight_index, shape, options)
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

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).vector_length, options_of(scheme).m

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            "sparse": Implementation(None, "sparse tensor cores"),
            "library": Implementation(None, "torch's own linear on the unpacked weight"),
        }

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        if implementation == "sparse":
            return cost.sparse_seconds(shape, nbytes, tokens, gpu)
        return unpacked_seconds(shape, nbytes, tokens, gpu, cost.UNPACK_MEMORY)
