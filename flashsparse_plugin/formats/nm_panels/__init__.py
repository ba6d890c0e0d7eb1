# SPDX-License-Identifier: Apache-2.0
"""The form in which nm_vector runs on a CPU where 16 rows share their columns; never on disk.

Entries of 16 rows lie side by side, so that an entry is one register and nothing is decoded. The
layout is in kernels/formats/nm_panels.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...plan import Plan
from ..nm_pattern import PatternOptions, options_of, unpack_positions
from ..pattern_form import PatternForm
from ..values import value_bits
from . import reference
from .ops import ops

ROWS = 16  # of a panel


class NMPanels(PatternForm):
    name = "nm_panels"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    holds = f"vectors of a multiple of {ROWS} rows"
    tensor_names = ("values", "columns")
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.value_type is None and options.vector_length % ROWS == 0

    def examples(self) -> tuple[Scheme, ...]:
        options = {"n": 3, "m": 8, "vector_length": 32}
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options = options_of(scheme)
        kept = options.kept(shape[1])
        return {
            "values": TensorSpec(value_bits(scheme.dtype), (-(-shape[0] // ROWS), kept, ROWS)),
            "columns": TensorSpec(torch.int32, (options.groups(shape[0]), kept)),
        }

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        options, (rows, cols) = self.require_fit(scheme, shape), shape
        kept = options.kept(cols)
        weight_index = stored["weight_index"]
        padded = F.pad(stored["weight_packed"], (0, 0, 0, -rows % ROWS))
        positions = unpack_positions(weight_index, kept, options.index_bits)
        windows = (
            torch.arange(kept // options.n, dtype=torch.int32, device=weight_index.device)
            * options.m
        )
        columns = positions.to(torch.int32) + windows.repeat_interleave(options.n)
        tensors = {
            "values": padded.view(-1, ROWS, kept).transpose(1, 2).contiguous(),
            "columns": columns.clamp_(max=cols),
        }
        return PackedWeight(scheme, (rows, cols), tensors)

    def unpack(self, packed: PackedWeight) -> Tensor:
        values, columns = (packed.tensors[name].cpu() for name in self.tensor_names)
        length = options_of(packed.scheme).vector_length
        weight = ops.nm_panels_unpack(values, columns, *packed.shape, length, packed.dtype)
        return weight.to(packed.device)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,  # there is one implementation
    ) -> Tensor:
        length = options_of(scheme).vector_length
        return ops.nm_panels_linear(
            x, tensors["values"], tensors["columns"], shape[0], length, scheme.dtype, bias
        )

    def check(self, packed: PackedWeight) -> None:
        options, cols = options_of(packed.scheme), packed.shape[1]
        columns = packed.tensors["columns"].cpu()
        windows = torch.arange(columns.shape[1] // options.n, dtype=torch.int32) * options.m
        first = windows.repeat_interleave(options.n)
        if bool(((columns < first) | (columns >= first + options.m) & (columns != cols)).any()):
            raise FormatError("columns has one outside of its window")
        if bool((columns > cols).any()):
            raise FormatError(f"columns has one beyond the weight's {cols} columns")
        inside = columns.view(len(columns), -1, options.n)
        if bool(((inside[..., 1:] <= inside[..., :-1]) & (inside[..., 1:] < cols)).any()):
            raise FormatError("the columns of a window do not rise")
        # An entry beyond the edge meets a zero, which an infinity would make NaN of.
        values = packed.tensors["values"].cpu()[:, -options.n :]
        beyond = (columns[:, -options.n :] == cols).repeat_interleave(
            options.vector_length // ROWS, 0
        )[: len(values)]
        if bool((values[beyond] != 0).any()):
            raise FormatError("values has a nonzero beyond the weight's edge")

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self.unpack(packed).count_nonzero())
