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

from ....packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...values.quantization import SCALE, quantization_of
from ...values.types import SMALLEST
from ..form import UNPACKING, PatternFormat
from ..options import PatternOptions, options_of, store, store_codes, value_arguments
from . import reference
from .layout import LANE_BITS, PAIR, Layout, has_scales, panel_columns, value_bits
from .ops import ops


class NMGather(PatternFormat):
    name = "nm_gather"
    in_words = "N:M that rows share, GPU"
    planner = "nm_gather"
    on_disk = False
    holds = (
        "vectors of 8 rows or more, of 16 with codes of 8 bits and one scale a row, or of 32 with "
        "codes of 4 bits and scales by groups, in windows of which the fewest with a multiple of "
        "16 kept columns are not wider than 256 columns or a group"
    )
    sparse = "kernels that gather x by ldmatrix"
    unpacking = (UNPACKING, 2.6)  # fitted to nm_prompts.csv: values go to columns one by one
    streams = ("gather_values", "gather_index")
    tensor_names = (*streams, SCALE)
    linear_op = ops.nm_gather_linear
    limits = 1
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        whole_lanes = options.vector_length * value_bits(options) >= LANE_BITS
        by_group = options.group is not None
        return whole_lanes and panel_columns(options) > 0 and by_group == has_scales(options)

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int | str], ...] = (
            {"n": 8, "m": 32, "vector_length": 64},
            {"n": 2, "m": 4, "vector_length": 8},
            {"n": 3, "m": 12, "vector_length": 16},  # panels of 192 columns and 3 steps
            {"n": 8, "m": 32, "vector_length": 32, "values": "fp8_e4m3"},
            {"n": 2, "m": 4, "vector_length": 16, "values": "int8"},
            {"n": 8, "m": 32, "vector_length": 32, "values": SMALLEST.name, "group": 128},
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        layout, options = self._layout(scheme, shape), options_of(scheme)
        values = (layout.units, layout.pairs, layout.pair_values)
        specs = {
            "gather_values": TensorSpec(torch.uint8 if options.value_type else torch.int16, values),
            "gather_index": TensorSpec(torch.uint8, (layout.groups, layout.pairs, PAIR)),
        }
        if options.value_type and options.group is None:
            specs[SCALE] = TensorSpec(torch.float32, (shape[0], 1))
        return specs

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        made = self._layout(scheme, shape).arrange(
            stored["weight_packed"], stored["weight_index"], stored.get(SCALE)
        )
        tensors = dict(zip(self.streams, made, strict=True))
        if SCALE in self.tensors(scheme, shape):
            tensors[SCALE] = stored[SCALE]
        return PackedWeight(scheme, shape, tensors)

    def row_places(self, scheme: Scheme, shape: tuple[int, int], device: torch.device) -> Tensor:
        return self._layout(scheme, shape).row_places().to(device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        values, index = map(packed.tensors.get, self.streams)
        return ops.nm_gather_unpack(
            *(values, index, *packed.shape, *options_of(packed.scheme).numbers, packed.dtype),
            *value_arguments(packed.scheme, packed.tensors),
        )

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        options, layout = options_of(packed.scheme), self._layout(packed.scheme, packed.shape)
        if options.value_type is None:
            return store(self.unpack(packed), options)
        bits = layout.spread(packed.tensors["gather_values"], packed.tensors["gather_index"])
        return store_codes(options.value_type.numbers(bits), self._scales(packed), options)

    def _scales(self, packed: PackedWeight) -> Tensor:
        """As nm_vector stores them."""
        if SCALE in packed.tensors:
            return packed.tensors[SCALE]
        layout = self._layout(packed.scheme, packed.shape)
        return layout.scales(packed.tensors["gather_values"], packed.dtype)

    def check(self, packed: PackedWeight) -> None:
        values, index = (packed.tensors[name].detach() for name in self.streams)
        complaint = self._layout(packed.scheme, packed.shape).complaint(values, index)
        if complaint:
            raise FormatError(complaint)
        found = quantization_of(packed.scheme)
        if found is not None:
            found.require_scales(self._scales(packed), packed.dtype)

    def nonzeros(self, packed: PackedWeight) -> int:
        layout = self._layout(packed.scheme, packed.shape)
        units = packed.tensors["gather_values"].split(1 << 10)
        found = (layout.magnitudes(layout.from_fragments(some)) for some in units)
        return sum(int(each.count_nonzero()) for each in found)

    def _layout(self, scheme: Scheme, shape: tuple[int, int]) -> Layout:
        return Layout(self.require_fit(scheme, shape), shape)
