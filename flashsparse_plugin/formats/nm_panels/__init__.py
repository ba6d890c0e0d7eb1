# SPDX-License-Identifier: Apache-2.0
"""The form in which nm_vector runs on a CPU where 16 rows share their columns; never on disk.

Entries of 16 rows lie side by side, so that an entry is one register and nothing is decoded. The
layout is in kernels/formats/nm_panels.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...plan import Plan
from ..entry_form import ROWS, EntryForm, by_panel, decode_panels
from ..nm_pattern import PatternOptions, options_of, unpack_positions
from ..value_types import require_scales, scale_count, scale_dtype
from ..values import magnitudes, value_bits
from . import reference
from .ops import ops


class NMPanels(EntryForm):
    name = "nm_panels"
    holds = f"vectors of a multiple of {ROWS} rows"
    tensor_names = ("values", "columns", "scales")
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.vector_length % ROWS == 0

    def examples(self) -> tuple[Scheme, ...]:
        options = {"n": 3, "m": 8, "vector_length": 32}
        codes = {**options, "values": "int4", "group": 32}
        native = (self.scheme(dtype, options) for dtype in self.dtypes)
        return (*native, self.scheme(torch.bfloat16, codes))

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options, panels = options_of(scheme), -(-shape[0] // ROWS)
        kept, values = options.kept(shape[1]), options.value_type
        specs = {
            "values": TensorSpec(value_bits(scheme.dtype), (panels, kept, ROWS)),
            "columns": TensorSpec(torch.int32, (options.groups(shape[0]), kept)),
        }
        if values is not None:
            scales = (panels, scale_count(shape[1], options.group), ROWS)
            specs["values"] = TensorSpec(torch.uint8, (panels, values.code_bytes(kept), ROWS))
            specs["scales"] = TensorSpec(scale_dtype(scheme.dtype, options.group), scales)
        return specs

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

    def positions(self, packed: PackedWeight) -> Tensor:
        options, cols = options_of(packed.scheme), packed.shape[1]
        columns = packed.tensors["columns"]
        windows = columns.view(len(columns), -1, options.n)
        first = torch.arange(windows.shape[1], dtype=torch.int32, device=columns.device)
        positions = windows - first[:, None] * options.m
        # Entries beyond the edge, which all have column in_features, follow each other.
        beyond = windows[:, -1] == cols
        positions[:, -1] += (beyond.cumsum(1, dtype=torch.int32) - 1) * beyond
        return positions.flatten(1).to(torch.uint8)

    def unpack(self, packed: PackedWeight) -> Tensor:
        return self._unpack(packed, packed.tensors.get("scales"), packed.dtype)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> Tensor:
        options = options_of(scheme)
        codes: tuple[Any, ...] = ()
        if options.value_type is not None:
            codes = (tensors["scales"], options.values, options.group_entries or 0)
        return ops.nm_panels_linear(
            x,
            tensors["values"],
            tensors["columns"],
            shape[0],
            options.vector_length,
            scheme.dtype_number,
            bias,
            *codes,
        )

    def check(self, packed: PackedWeight) -> None:
        options, cols = options_of(packed.scheme), packed.shape[1]
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
        values = packed.tensors["values"].cpu()
        if options.value_type:
            scales = packed.tensors["scales"].cpu()
            require_scales(scales, options.value_type, packed.dtype, "scales")
            values = decode_panels(values, options.value_type, columns.shape[1])
            if bool(values.isnan().any()):
                raise FormatError("values has a code that is NaN")
        # An entry beyond the edge meets a zero, which an infinity would make NaN of.
        outside = (columns == cols).repeat_interleave(options.vector_length // ROWS, 0)
        nonzero = values != 0 if options.value_type else magnitudes(values) != 0
        rows = packed.shape[0] - (len(values) - 1) * ROWS  # of the last panel
        if bool(nonzero[outside[: len(values)]].any() | nonzero[-1, :, rows:].any()):
            raise FormatError("values has a nonzero beyond the weight's edge")

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self.unpack(packed).count_nonzero())

    def _unpack(self, packed: PackedWeight, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
        options = options_of(packed.scheme)
        weight = ops.nm_panels_unpack(
            packed.tensors["values"].cpu(),
            packed.tensors["columns"].cpu(),
            *packed.shape,
            options.vector_length,
            dtype,
            None if scales is None else scales.cpu(),
            options.values,
            options.group_entries or 0,
        )
        return weight.to(packed.device)
