# SPDX-License-Identifier: Apache-2.0
"""nm_rows: codes whose rows choose their columns: each row's position picks its activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Plan
from ...values.dtypes import bits_as
from ...values.types import SMALLEST
from ..form import PatternFormat
from ..options import PatternOptions, options_of, pack_positions, unpack_positions
from . import reference
from .ops import ops
from .panels import (
    DTYPES,
    ROWS,
    by_panel,
    by_row,
    count_nonzeros,
    require_panel_scales,
    require_values,
    stored_of,
    value_specs,
)


class NMRows(PatternFormat):
    name = "nm_rows"
    in_words = "N:M patterns, rows for CPUs"
    on_disk = False
    dtypes = DTYPES
    holds = f"codes (values other than native) in vectors of fewer than {ROWS} rows"
    tensor_names = streams = ("values", "positions", "scales")
    linear_op = ops.nm_rows_linear
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.value_type is not None and options.vector_length < ROWS

    def examples(self) -> tuple[Scheme, ...]:
        return (
            self.scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "int8"}),
            self.scheme(torch.float16, {"n": 2, "m": 4, "values": SMALLEST.name, "group": 32}),
            self.scheme(torch.float32, {"n": 3, "m": 8, "vector_length": 4, "values": "fp8_e4m3"}),
        )

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options, specs = options_of(scheme), value_specs(scheme, shape)
        words = -(-options.kept(shape[1]) * _position_bits(options) // 32)
        return {
            "values": specs["values"],
            "positions": TensorSpec(torch.int32, (-(-shape[0] // ROWS), words, ROWS)),
            "scales": specs["scales"],
        }

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        options = self.require_fit(scheme, shape)
        index = _words(stored["weight_index"], options.kept(shape[1]), options)
        tensors = {
            "values": by_panel(stored["weight_packed"]),
            "positions": by_panel(index.repeat_interleave(options.vector_length, 0)[: shape[0]]),
            "scales": by_panel(stored["weight_scale"]),
        }
        return PackedWeight(scheme, shape, tensors)

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        options = options_of(packed.scheme)
        words = by_row(packed.tensors["positions"], packed.shape[0])[:: options.vector_length]
        index, kept = bits_as(words, torch.uint8), options.kept(packed.shape[1])
        return stored_of(packed, unpack_positions(index, kept, _position_bits(options)))

    def unpack(self, packed: PackedWeight) -> Tensor:
        options = options_of(packed.scheme)
        weight = ops.nm_rows_unpack(
            *(packed.tensors[name].cpu() for name in self.tensor_names),
            *packed.shape,
            options.n,
            options.m,
            packed.dtype,
            options.values,
            options.group or 0,
        )
        return weight.to(packed.device)

    def told(
        self,
        scheme: Scheme,
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> tuple[Any, ...]:
        options = options_of(scheme)
        own, group = scheme.dtype_number, options.group or 0
        return (options.n, options.m, own, options.values, group, bias)

    def check(self, packed: PackedWeight) -> None:
        """Panel by panel: positions of all of them would take more memory than the weight."""
        options, (rows, cols) = options_of(packed.scheme), packed.shape
        require_panel_scales(packed)
        kept, bits = options.kept(cols), _position_bits(options)
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)[:, None]
        first = torch.arange(kept // options.n)[:, None, None] * options.m
        panels = zip(packed.tensors["positions"].cpu(), packed.tensors["values"].cpu(), strict=True)
        for panel, (words, codes) in enumerate(panels):
            inside = slice(rows - panel * ROWS)
            repeated = words[:, :: options.vector_length].repeat_interleave(
                options.vector_length, 1
            )
            if bool((words != repeated)[:, inside].any()):
                raise FormatError("positions differ among rows that share their columns")
            positions = (words[:, None] >> shifts & ((1 << bits) - 1)).flatten(0, 1)[:kept]
            positions = positions.view(-1, options.n, ROWS)
            windows = positions[..., inside]
            if bool((windows >= options.m).any()):
                raise FormatError(f"positions has one outside of its window of {options.m} columns")
            if bool((windows[:, 1:] <= windows[:, :-1]).any()):
                raise FormatError("the positions of a window do not rise")
            beyond = (positions + first >= cols).flatten(0, 1)[None]
            require_values(codes[None], options, beyond, inside.stop)

    def nonzeros(self, packed: PackedWeight) -> int:
        return count_nonzeros(packed)


def _position_bits(options: PatternOptions) -> int:
    """Bits that a position takes here."""
    return 2 if options.m <= 4 else 4 if options.m <= 16 else 8


def _words(weight_index: Tensor, kept: int, options: PatternOptions) -> Tensor:
    """Positions as int32 [groups, words], low bits first."""
    bits = _position_bits(options)
    if bits != options.index_bits:
        positions = unpack_positions(weight_index, kept, options.index_bits)
        weight_index = pack_positions(positions, bits)
    padded = F.pad(weight_index, (0, -weight_index.shape[1] % 4))
    return bits_as(padded, torch.int32)
