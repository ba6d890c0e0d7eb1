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

from ...gpu import Gpu, unpacked_seconds
from ...packed import Format, FormatError, PackedWeight, Reference, Scheme, TensorSpec, rules
from ...plan import Implementation, Plan
from ..nm_pattern import PatternOptions, options_of, pack_vectors
from . import cost, reference
from .layout import PAIR, Layout, panel_columns
from .ops import ops


class NMGather(Format):
    name = "nm_gather"
    version = 1
    on_disk = False
    Options = PatternOptions
    tensor_names = ("gather_values", "gather_index")
    reference: ClassVar[Reference] = reference

    @staticmethod
    def fits(options: PatternOptions) -> bool:
        """Whether the form can hold a pattern: vectors of 8 rows, and windows not too wide."""
        return options.vector_length >= 8 and panel_columns(options) > 0

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 8, "m": 32, "vector_length": 64},
            {"n": 2, "m": 4, "vector_length": 8},
            {"n": 3, "m": 12, "vector_length": 16},  # panels of 192 columns and 3 steps
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return options_of(scheme).keep_largest(weight)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        layout = _layout(scheme, shape)
        values = (layout.units, layout.pairs, layout.unit_rows * PAIR)
        return {
            "gather_values": TensorSpec(torch.int16, values),
            "gather_index": TensorSpec(torch.uint8, (layout.groups, layout.pairs, PAIR)),
        }

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            stored = pack_vectors(weight.detach().cpu(), options_of(scheme))
        values, index = (tensor.to(weight.device) for tensor in stored)
        return self.arrange(values, index, scheme, (weight.shape[0], weight.shape[1]))

    def arrange(
        self, weight_packed: Tensor, weight_index: Tensor, scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the storage tensors of nm_vector, valid ones, where they are.

        Raises:
            FormatError: For a pattern that the form cannot hold.
        """
        made = _layout(scheme, shape).arrange(weight_packed, weight_index)
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
        complaint = _layout(packed.scheme, packed.shape).complaint(values, index)
        if complaint:
            raise FormatError(complaint)

    def nonzeros(self, packed: PackedWeight) -> int:
        values = packed.tensors["gather_values"]
        return sum(int((unit & 0x7FFF).count_nonzero()) for unit in values.split(1 << 10))

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).vector_length, options_of(scheme).m

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            "sparse": Implementation(None, "the sparse kernel of nm_gather"),
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


def _layout(scheme: Scheme, shape: tuple[int, int]) -> Layout:
    """The layout of a weight.

    Raises:
        FormatError: For a pattern that the form cannot hold.
    """
    options = options_of(scheme)
    if not NMGather.fits(options):
        raise FormatError(
            f"nm_gather cannot hold a weight of shape {list(shape)} with {options.title}: it needs "
            "vectors of 8 rows or more, and windows of which the fewest with a multiple of 16 "
            "kept columns are not wider than 256 columns. Pack to nm_vector, which holds it"
        )
    return Layout(options, shape)
