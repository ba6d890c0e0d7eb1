# SPDX-License-Identifier: Apache-2.0
"""The form in which float32 nm_vector runs on CUDA where 4 rows or more share their columns.

The kernel and its offline step are NM-SpMM's (Ma et al., 2025, section III). Never on disk. The
layout is drawn in kernels/formats/nm_spmm.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ....gpu import LAUNCH, LIBRARY_FIXED, LIBRARY_MEMORY, Gpu
from ....packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ..form import UNPACKING, PatternFormat
from ..options import PatternOptions, options_of, store
from . import reference
from .analysis import ITEMSIZE
from .layout import BLOCK, UNIT, Layout, panel_windows
from .ops import ops

LIBRARY_REACH = 0.75  # share of the float32 peak that the library is taken to reach


class NMSpmm(PatternFormat):
    name = "nm_spmm"
    in_words = "N:M of any kind, GPU"
    planner = "nm_spmm"
    on_disk = False
    dtypes = (torch.float32,)
    holds = (
        "vectors of 4 rows or more, in windows of which the fewest with a multiple of 4 kept "
        "columns are not wider than 256 columns and keep 128 or fewer"
    )
    sparse = "NM-SpMM's kernel on CUDA cores"
    tensor_names = streams = ("spmm_values", "spmm_index", "spmm_columns", "spmm_packed")
    linear_op = ops.nm_spmm_linear
    limits = 1
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.value_type is None and panel_windows(options) > 0

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 8, "m": 32, "vector_length": 32},
            {"n": 3, "m": 5, "vector_length": 4},
        )
        return tuple(self.scheme(torch.float32, options) for options in patterns)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        layout = self._layout(scheme, shape)
        panels = (layout.blocks, layout.panels)
        index = TensorSpec(torch.uint8, (*panels, layout.groups, layout.entries))
        values = (*panels, BLOCK // UNIT, layout.entries, UNIT)
        return {
            "spmm_values": TensorSpec(torch.int32, values),
            "spmm_index": index,
            "spmm_columns": TensorSpec(torch.uint8, (*panels, layout.capacity)),
            "spmm_packed": index,
        }

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        made = self._layout(scheme, shape).arrange(stored["weight_packed"], stored["weight_index"])
        return PackedWeight(scheme, shape, dict(zip(self.tensor_names, made, strict=True)))

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        return store(self.unpack(packed), options_of(packed.scheme))

    def unpack(self, packed: PackedWeight) -> Tensor:
        pattern = options_of(packed.scheme).numbers
        tensors = (packed.tensors[name] for name in self.tensor_names)
        return ops.nm_spmm_unpack(*tensors, *packed.shape, *pattern, packed.dtype)

    def check(self, packed: PackedWeight) -> None:
        tensors = (packed.tensors[name].detach() for name in self.tensor_names)
        complaint = self._layout(packed.scheme, packed.shape).complaint(*tensors)
        if complaint:
            raise FormatError(complaint)

    def nonzeros(self, packed: PackedWeight) -> int:
        values = packed.tensors["spmm_values"]
        return sum(int((block & 0x7FFFFFFF).count_nonzero()) for block in values)

    def library_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        dense = ITEMSIZE * shape[0] * shape[1]
        unpack = LAUNCH + (nbytes + dense) / (UNPACKING * gpu.memory)
        arithmetic = 2.0 * tokens * shape[0] * shape[1] / (LIBRARY_REACH * gpu.float32_peak)
        return unpack + LIBRARY_FIXED + max(dense / (LIBRARY_MEMORY * gpu.memory), arithmetic)

    def _layout(self, scheme: Scheme, shape: tuple[int, int]) -> Layout:
        return Layout(self.require_fit(scheme, shape), shape)
