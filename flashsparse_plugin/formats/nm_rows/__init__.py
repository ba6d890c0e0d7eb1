# SPDX-License-Identifier: Apache-2.0
"""The form in which nm_vector with codes runs on a CPU where rows choose columns; never on disk.

Entries of 16 rows lie side by side, with a position in the window for each: an entry is a register
of codes, and its positions pick the activations out of another one. The layout is in
kernels/formats/nm_rows.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ...packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ...plan import Plan
from ..entry_form import ROWS, EntryForm, by_panel, by_row, decode_panels
from ..nm_pattern import PatternOptions, options_of, pack_positions, unpack_positions
from ..value_types import require_scales, scale_count, scale_dtype
from ..values import bits_as
from . import reference
from .ops import ops


class NMRows(EntryForm):
    name = "nm_rows"
    holds = f"codes (values other than native) in vectors of fewer than {ROWS} rows"
    tensor_names = ("values", "positions", "scales")
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.value_type is not None and options.vector_length < ROWS

    def examples(self) -> tuple[Scheme, ...]:
        return (
            self.scheme(torch.bfloat16, {"n": 2, "m": 4, "values": "int8"}),
            self.scheme(torch.float16, {"n": 2, "m": 4, "values": "int4", "group": 32}),
            self.scheme(torch.float32, {"n": 3, "m": 8, "vector_length": 4, "values": "fp8_e4m3"}),
        )

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options, panels = options_of(scheme), -(-shape[0] // ROWS)
        kept, values = options.kept(shape[1]), options.value_type
        assert values is not None
        words = -(-kept * _position_bits(options) // 32)
        groups = scale_count(shape[1], options.group)
        return {
            "values": TensorSpec(torch.uint8, (panels, values.code_bytes(kept), ROWS)),
            "positions": TensorSpec(torch.int32, (panels, words, ROWS)),
            "scales": TensorSpec(scale_dtype(scheme.dtype, options.group), (panels, groups, ROWS)),
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

    def positions(self, packed: PackedWeight) -> Tensor:
        options = options_of(packed.scheme)
        words = by_row(packed.tensors["positions"], packed.shape[0])[:: options.vector_length]
        index = bits_as(words, torch.uint8)
        return unpack_positions(index, options.kept(packed.shape[1]), _position_bits(options))

    def unpack(self, packed: PackedWeight) -> Tensor:
        return self._unpack(packed, packed.tensors["scales"], packed.dtype)

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
        return ops.nm_rows_linear(
            x,
            tensors["values"],
            tensors["positions"],
            tensors["scales"],
            shape[0],
            options.n,
            options.m,
            scheme.dtype_number,
            options.values,
            options.group or 0,
            bias,
        )

    def check(self, packed: PackedWeight) -> None:
        options, (rows, cols) = options_of(packed.scheme), packed.shape
        values = options.value_type
        assert values is not None
        tensors = {name: tensor.detach().cpu() for name, tensor in packed.tensors.items()}
        require_scales(tensors["scales"], values, packed.dtype, "scales")
        kept, bits = options.kept(cols), _position_bits(options)
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)[:, None]
        first = torch.arange(kept // options.n)[:, None, None] * options.m
        panels = zip(tensors["positions"], tensors["values"], strict=True)
        for panel, (words, codes) in enumerate(panels):
            inside = slice(rows - panel * ROWS)
            repeated = words[:, :: options.vector_length].repeat_interleave(
                options.vector_length, 1
            )
            if bool((words != repeated)[:, inside].any()):
                raise FormatError("positions differ among rows that share their columns")
            positions = (words[:, None] >> shifts & ((1 << bits) - 1)).flatten(0, 1)[:kept]
            windows = positions.view(-1, options.n, ROWS)[..., inside]
            if bool((windows >= options.m).any()):
                raise FormatError(f"positions has one outside of its window of {options.m} columns")
            if bool((windows[:, 1:] <= windows[:, :-1]).any()):
                raise FormatError("the positions of a window do not rise")
            numbers = decode_panels(codes[None], values, kept)[0, :, inside]
            if bool(numbers.isnan().any()):
                raise FormatError("values has a code that is NaN")
            beyond = windows + first >= cols
            padding = decode_panels(codes[None], values, kept)[0, :, inside.stop :]
            nonzero = numbers.reshape(windows.shape)[beyond] != 0
            if bool(nonzero.any() | (inside.stop < ROWS and padding.any())):
                raise FormatError("values has a nonzero beyond the weight's edge")

    def nonzeros(self, packed: PackedWeight) -> int:
        values, kept = options_of(packed.scheme).value_type, options_of(packed.scheme).kept
        assert values is not None
        numbers = decode_panels(packed.tensors["values"], values, kept(packed.shape[1]))
        return int(numbers.count_nonzero())

    def _unpack(self, packed: PackedWeight, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
        options = options_of(packed.scheme)
        values, positions = (packed.tensors[name].cpu() for name in ("values", "positions"))
        weight = ops.nm_rows_unpack(
            values,
            positions,
            None if scales is None else scales.cpu(),
            *packed.shape,
            options.n,
            options.m,
            dtype,
            options.values,
            options.group or 0,
        )
        return weight.to(packed.device)


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
