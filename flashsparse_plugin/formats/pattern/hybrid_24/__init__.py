# SPDX-License-Identifier: Apache-2.0
"""hybrid_24: units of 16 rows x 256 columns, each of them 2:4 or dense.

A unit is dense where it keeps more than two of some four columns, so that the format holds any
weight, and is worth it where most units follow 2:4. The layout is specified in docs/hybrid.md.

Source: PATCH (arXiv 2509.23410) has tiles of two kinds, SpenseGPT (arXiv 2606.10445) regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import Format, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import LIBRARY, Implementation, Plan
from ...units import UNIT_COLS, UNIT_ROWS, unit_grid
from ...unstructured.interleaved_bitmap import InterleavedBitmap
from ...values.dtypes import value_bits
from ...values.quantization import SCALE, quantization_of, require_quantized
from ...values.types import SMALLEST, spread_scales
from . import reference
from .forms import by_streams
from .layout import (
    breaks_24,
    in_both_kinds,
    read_values,
    require_streams,
    stored_tensors,
    thinned,
)
from .options import HybridOptions, hybrid_options, options_named
from .panels import HybridPanels
from .units import HybridUnits

_MOST_DENSE = 0.9
"""Share of dense units up to which `options_for` names the format; beyond, it saves too little."""


class Hybrid24(Format):
    name = "hybrid_24"
    in_words = "2:4 and dense 16x256 blocks"
    version = 1
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    Options = HybridOptions
    streams = ("weight_packed", "weight_index", "weight_kinds")
    tensor_names = (*streams, SCALE)
    reference: ClassVar[Reference] = reference
    short_names = ("hybrid", "hybrid-int8")

    def options_named(self, text: str) -> Mapping[str, Any] | None:
        return options_named(text)

    def examples(self) -> tuple[Scheme, ...]:
        codes: tuple[Mapping[str, Any], ...] = (
            {"values": "int8"},
            {"values": "fp8_e4m3", "group": 128},
            {"values": SMALLEST.name, "group": 32},
        )
        native = (self.scheme(dtype) for dtype in self.dtypes)
        return (*native, *(self.scheme(torch.bfloat16, options) for options in codes))

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        """A weight with units of both kinds, in alternation; it could hold the given one, too."""
        found = quantization_of(scheme)
        kept = in_both_kinds(weight)
        return kept if found is None else found.conform(kept)

    def thin(self, weight: Tensor, scheme: Scheme, density: float) -> Tensor:
        return thinned(weight, scheme, density)

    def options_for(self, weight: Tensor) -> Mapping[str, Any] | None:
        """Native values, where units are of both kinds; else nm_vector or dense is smaller."""
        dense = float(breaks_24(weight != 0).float().mean())
        return {} if 0 < dense <= _MOST_DENSE else None

    def takes_codes(self, values: str, group: int | None) -> bool:
        return True

    def pattern(self, scheme: Scheme) -> tuple[int, int, int]:
        """What a weight is pruned to that is packed without a choice of dense units."""
        return 2, 4, 1

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return UNIT_ROWS, UNIT_COLS

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        found = quantization_of(scheme)
        stored = value_bits(scheme.dtype) if found is None else torch.uint8
        specs = {
            "weight_packed": TensorSpec(stored, (None,)),
            "weight_index": TensorSpec(torch.uint8, (None,)),
            "weight_kinds": TensorSpec(torch.uint8, unit_grid(*shape)),
        }
        return specs if found is None else specs | {SCALE: found.scale_spec(scheme.dtype, shape)}

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        weight, found = weight.detach(), quantization_of(scheme)
        if found is None:
            bits = weight.contiguous().view(value_bits(scheme.dtype))
            return PackedWeight(scheme, _shape(bits), stored_tensors(bits, None, None))
        return self.pack_codes(*found.quantise(weight), scheme)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        found = require_quantized(scheme)
        numbers, scales = found.require_codes(codes, scales, scheme)
        bits = numbers.to(found.type.dtype).view(torch.uint8)
        return PackedWeight(scheme, _shape(bits), stored_tensors(bits, scales, found.type))

    def unpack(self, packed: PackedWeight) -> Tensor:
        return _weight(packed.tensors, packed.scheme, packed.shape)

    def check(self, packed: PackedWeight) -> None:
        self.nonzeros(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        found = quantization_of(packed.scheme)
        if found is not None:
            found.require_scales(packed.tensors[SCALE], packed.dtype)
        return require_streams(
            packed.tensors, packed.shape, hybrid_options(packed.scheme).value_type
        )

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """By the unpacked weight; on a GPU layers run so only in float32."""
        weight = _weight(tensors, scheme, shape)
        if x.dtype == weight.dtype and x.device.type != "cpu":
            return F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        y = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        return y.to(x.dtype)

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        if device.type == "cpu":
            if scheme.quantization is not None:
                return HybridPanels().scheme(scheme.dtype, scheme.values)
            return InterleavedBitmap().scheme(scheme.dtype)
        if device.type == "cuda" and scheme.dtype in HybridUnits.dtypes:
            return HybridUnits().scheme(scheme.dtype, scheme.values)
        return scheme

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        return PackedWeight(scheme, shape, stored)

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        return packed.tensors

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        return by_streams(packed, target, device) or super().transcode(packed, target, device)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {LIBRARY: Implementation(None, "torch's own linear on the unpacked weight")}

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        """Units stay what they are."""
        found, tensors = quantization_of(packed.scheme), packed.tensors
        type = hybrid_options(packed.scheme).value_type
        values = read_values(tensors, packed.shape, type)
        values = values[rows.start : rows.stop, columns.start : columns.stop]
        down = slice(rows.start // UNIT_ROWS, -(-rows.stop // UNIT_ROWS))
        across = slice(columns.start // UNIT_COLS, -(-columns.stop // UNIT_COLS))
        kinds = tensors["weight_kinds"][down, across].contiguous()
        scales = None
        if found is not None:
            width = found.group or packed.shape[1]
            own = slice(columns.start // width, -(-columns.stop // width))
            scales = tensors[SCALE][rows.start : rows.stop, own].contiguous()
        part = stored_tensors(values.contiguous(), scales, type, kinds)
        return PackedWeight(packed.scheme, _shape(values), part)

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        """Streams are row by row, and so follow each other."""
        names = parts[0].tensors
        joined = {name: torch.cat([part.tensors[name] for part in parts]) for name in names}
        rows = sum(part.shape[0] for part in parts)
        return PackedWeight(parts[0].scheme, (rows, parts[0].shape[1]), joined)


def _shape(values: Tensor) -> tuple[int, int]:
    return values.shape[0], values.shape[1]


def _weight(tensors: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> Tensor:
    """The dense weight: code x scale in float32, rounded to the dtype of the scheme."""
    type = hybrid_options(scheme).value_type
    values = read_values(tensors, shape, type)
    if type is None:
        return values.view(scheme.dtype)
    scales = spread_scales(tensors[SCALE].float(), shape[1], hybrid_options(scheme).group)
    return (type.numbers(values).float() * scales).to(scheme.dtype)
