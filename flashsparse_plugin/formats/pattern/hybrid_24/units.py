# SPDX-License-Identifier: Apache-2.0
"""hybrid_units: the form of hybrid_24 on a GPU; never on disk.

Units of 16 x 256 follow each other in a stream, those of 2:4 as sparse_24 has them, dense ones as
two of these. The layout is in kernels/formats/hybrid_units.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ....packed import Format, FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Plan, limits_of
from ...units import unit_grid
from ...values.quantization import SCALE, quantization_of, require_quantized
from ...values.types import SMALLEST
from ..options import value_arguments
from ..sparse_24.layout import UnitLayout
from . import units_layout, units_reference
from .forms import by_streams
from .layout import in_both_kinds, kinds_of, read_values, stored_tensors, thinned
from .ops import ops
from .options import HybridOptions, hybrid_options


class HybridUnits(Format):
    name = "hybrid_units"
    in_words = "2:4 and dense blocks, GPU"
    planner = "hybrid_units"
    version = 1
    on_disk = False
    Options = HybridOptions
    sparse = "tensor cores, sparse or dense by the block"
    streams = ("units", "unit_offsets")
    tensor_names = (*streams, SCALE)
    reference: ClassVar[Reference] = units_reference

    def examples(self) -> tuple[Scheme, ...]:
        return (
            *(self.scheme(dtype) for dtype in self.dtypes),
            self.scheme(torch.bfloat16, {"values": "int8"}),
            self.scheme(torch.float16, {"values": "fp8_e4m3", "group": 128}),
            self.scheme(torch.bfloat16, {"values": SMALLEST.name, "group": 32}),
        )

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        found, kept = quantization_of(scheme), in_both_kinds(weight)
        return kept if found is None else found.conform(kept)

    def thin(self, weight: Tensor, scheme: Scheme, density: float) -> Tensor:
        return thinned(weight, scheme, density)

    def takes_codes(self, values: str, group: int | None) -> bool:
        return True

    def pattern(self, scheme: Scheme) -> tuple[int, int, int]:
        """That of hybrid_24."""
        return 2, 4, 1

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        down, across = unit_grid(*shape)
        specs = {
            "units": TensorSpec(torch.int32, (None,)),
            "unit_offsets": TensorSpec(torch.int32, (down * across + 1,)),
        }
        if _layout(scheme).has_row_scales:
            specs[SCALE] = TensorSpec(torch.float32, (shape[0], 1))
        return specs

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        weight, found = weight.detach(), quantization_of(scheme)
        if found is None:
            return _packed(weight.contiguous().view(torch.int16), None, scheme)
        return self.pack_codes(*found.quantise(weight), scheme)

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        found = require_quantized(scheme)
        numbers, scales = found.require_codes(codes, scales, scheme)
        return _packed(numbers.to(found.type.dtype).view(torch.uint8), scales, scheme)

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the tensors of hybrid_24 by name, valid ones, where they are."""
        values = read_values(stored, shape, _layout(scheme).type)
        return _packed(values, stored.get(SCALE), scheme, stored["weight_kinds"])

    def stored(self, packed: PackedWeight) -> dict[str, Tensor]:
        """The tensors of hybrid_24."""
        own, held = _layout(packed.scheme), self._held(packed)
        kinds = units_layout.kinds_of(held[1], packed.shape, own).to(torch.uint8)
        return stored_tensors(
            units_layout.read_values(*held, packed.shape, own),
            self._scales(packed),
            own.type,
            kinds,
        )

    def unpack(self, packed: PackedWeight) -> Tensor:
        values = value_arguments(packed.scheme, packed.tensors)
        return ops.hybrid_units_unpack(*self._held(packed), *packed.shape, packed.dtype, *values)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        units, offsets = (tensors[name] for name in self.streams)
        told = (scheme.dtype_number, bias, *limits_of(plan, 2), *value_arguments(scheme, tensors))
        return ops.hybrid_units_linear(x, units, offsets, shape[0], *told)

    def check(self, packed: PackedWeight) -> None:
        self.nonzeros(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        """Offsets first, as the others are read by them."""
        own, held, shape = _layout(packed.scheme), self._held(packed), packed.shape
        units_layout.require_offsets(*held, shape, own)
        found, scales = quantization_of(packed.scheme), self._scales(packed)
        if found is not None and scales is not None:
            found.require_scales(scales, packed.dtype)
        if own.group is not None:
            beyond = units_layout.scales_of(*held, shape, own, torch.int16)
            if bool(beyond[shape[0] :].any() | beyond[:, -(-shape[1] // own.group) :].any()):
                raise FormatError("units have scales beyond the weight's edge")
        return units_layout.require_values(*held, shape, own)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        return by_streams(packed, target, device) or super().transcode(packed, target, device)

    def _held(self, packed: PackedWeight) -> tuple[Tensor, Tensor]:
        return packed.tensors["units"], packed.tensors["unit_offsets"]

    def _scales(self, packed: PackedWeight) -> Tensor | None:
        """Scales of rows or groups, as hybrid_24 stores them; None of native values."""
        own, shape = _layout(packed.scheme), packed.shape
        if own.group is None:
            return packed.tensors.get(SCALE)
        scales = units_layout.scales_of(*self._held(packed), shape, own, packed.dtype)
        return scales[: shape[0], : -(-shape[1] // own.group)].contiguous()


def _layout(scheme: Scheme) -> UnitLayout:
    options = hybrid_options(scheme)
    return UnitLayout(options.values, options.group)


def _packed(
    values: Tensor, scales: Tensor | None, scheme: Scheme, kinds: Tensor | None = None
) -> PackedWeight:
    """Of value bits [out_features, in_features]; units are of the kinds that they need, or more."""
    own = _layout(scheme)
    kinds = kinds_of(values, own.type) if kinds is None else kinds
    units, offsets = units_layout.arrange(values, kinds, scales, own)
    tensors = {"units": units, "unit_offsets": offsets}
    if own.has_row_scales:
        assert scales is not None
        tensors[SCALE] = scales
    return PackedWeight(scheme, (values.shape[0], values.shape[1]), tensors)
