# SPDX-License-Identifier: Apache-2.0
"""nm_panels: 16 rows share their columns, of which an activation is broadcast to all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Plan
from ...values.types import SMALLEST
from ..form import PatternFormat
from ..options import PatternOptions, options_of, unpack_positions
from . import reference
from .ops import ops
from .panels import (
    DTYPES,
    ROWS,
    by_panel,
    count_nonzeros,
    require_panel_scales,
    require_values,
    stored_of,
    value_specs,
)


class NMPanels(PatternFormat):
    name = "nm_panels"
    in_words = "N:M patterns, panels for CPUs"
    on_disk = False
    dtypes = DTYPES
    holds = f"vectors of a multiple of {ROWS} rows"
    streams = ("values", "columns")
    tensor_names = (*streams, "scales")
    linear_op = ops.nm_panels_linear
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.vector_length % ROWS == 0

    def examples(self) -> tuple[Scheme, ...]:
        options = {"n": 3, "m": 8, "vector_length": 32}
        codes = {**options, "values": SMALLEST.name, "group": 32}
        native = (self.scheme(dtype, options) for dtype in self.dtypes)
        return (*native, self.scheme(torch.bfloat16, codes))

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options, specs = options_of(scheme), value_specs(scheme, shape)
        columns = (options.groups(shape[0]), options.kept(shape[1]))
        return {
            "values": specs.pop("values"),
            "columns": TensorSpec(torch.int32, columns),
            **specs,
        }

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        options, cols = self.require_fit(scheme, shape), shape[1]
        kept, index = options.kept(cols), stored["weight_index"]
        positions = unpack_positions(index, kept, options.index_bits)
        first = torch.arange(kept // options.n, dtype=torch.int32, device=index.device) * options.m
        columns = positions.to(torch.int32) + first.repeat_interleave(options.n)
        tensors = {
            "values": by_panel(stored["weight_packed"]),
            "columns": columns.clamp_(max=cols),
        }
        if options.value_type:
            tensors["scales"] = by_panel(stored["weight_scale"])
        return PackedWeight(scheme, shape, tensors)

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        options, cols = options_of(packed.scheme), packed.shape[1]
        columns = packed.tensors["columns"]
        windows = columns.view(len(columns), -1, options.n)
        first = torch.arange(windows.shape[1], dtype=torch.int32, device=columns.device)
        positions = windows - first[:, None] * options.m
        # Entries beyond the edge, which all have column in_features, follow each other.
        beyond = windows[:, -1] == cols
        positions[:, -1] += (beyond.cumsum(1, dtype=torch.int32) - 1) * beyond
        return stored_of(packed, positions.flatten(1).to(torch.uint8))

    def row_places(self, scheme: Scheme, shape: tuple[int, int], device: torch.device) -> Tensor:
        row = torch.arange(ROWS, dtype=torch.int32, device=device)[:, None]
        return row + ROWS * torch.arange(shape[1], dtype=torch.int32, device=device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        options, scales = options_of(packed.scheme), packed.tensors.get("scales")
        weight = ops.nm_panels_unpack(
            packed.tensors["values"].cpu(),
            packed.tensors["columns"].cpu(),
            *packed.shape,
            options.vector_length,
            packed.dtype,
            None if scales is None else scales.cpu(),
            options.values,
            options.group_entries or 0,
        )
        return weight.to(packed.device)

    def told(
        self,
        scheme: Scheme,
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> tuple[Any, ...]:
        options, scales = options_of(scheme), tensors.get("scales")
        codes = () if scales is None else (scales, options.values, options.group_entries or 0)
        return (options.vector_length, scheme.dtype_number, bias, *codes)

    def check(self, packed: PackedWeight) -> None:
        options, (rows, cols) = options_of(packed.scheme), packed.shape
        columns = packed.tensors["columns"].cpu()
        windows = torch.arange(columns.shape[1] // options.n, dtype=torch.int32) * options.m
        first = windows.repeat_interleave(options.n)
        if bool(((columns < first) | (columns >= first + options.m)).any()):
            raise FormatError("columns has one outside of its window")
        if bool((columns > cols).any()):
            raise FormatError(f"columns has one beyond the weight's {cols} columns")
        inside = columns.view(len(columns), -1, options.n)
        if bool(((inside[..., 1:] <= inside[..., :-1]) & (inside[..., 1:] < cols)).any()):
            raise FormatError("the columns of a window do not rise")
        beyond = (inside[:, -1] == cols).sum(1)
        if bool((beyond > len(windows) * options.m - cols).any()):
            raise FormatError("columns has more beyond the weight's edge than its last window")
        require_panel_scales(packed)
        values = packed.tensors["values"].cpu()
        outside = (columns == cols).repeat_interleave(options.vector_length // ROWS, 0)
        outside = outside[: len(values), :, None]
        require_values(values, options, outside, rows - (len(values) - 1) * ROWS)

    def nonzeros(self, packed: PackedWeight) -> int:
        return count_nonzeros(packed)
