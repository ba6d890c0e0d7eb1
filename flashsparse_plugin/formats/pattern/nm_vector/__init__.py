# SPDX-License-Identifier: Apache-2.0
"""nm_vector: of every M columns N are kept, the same ones for L rows (NM-SpMM, section II).

2:4 is n=2, m=4, vector_length=1. The layout is in kernels/formats/nm_vector.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....ops import where_kernels_are
from ....packed import PackedWeight, Reference, Scheme, TensorSpec
from ....plan import LIBRARY, Implementation
from ...unstructured.interleaved_bitmap import InterleavedBitmap
from ...unstructured.tiled_bitmap import TiledBitmap
from ...values.dtypes import value_bits
from ...values.quantization import SCALE, quantization_of
from ...values.types import SMALLEST
from ..cpu_panels import NMPanels, NMRows
from ..form import PatternFormat
from ..nm_gather import NMGather
from ..nm_spmm import NMSpmm
from ..options import (
    PatternOptions,
    columns_used,
    options_named,
    options_of,
    stored_codes,
    value_arguments,
)
from ..sparse_24 import Sparse24
from . import reference
from .ops import ops

_FORMS: Mapping[str, tuple[PatternFormat, ...]] = {
    "cpu": (NMPanels(), NMRows()),
    "cuda": (NMGather(), Sparse24(), NMSpmm()),
}
"""By device, the forms in which kernels read patterns, the fastest first."""

# M, L, the largest N that `options_for` finds, and what N is a multiple of for the fast kernels.
_LOOKED_FOR = ((4, 1, 2, 2), (32, 32, 28, 4))


class NMVector(PatternFormat):
    name = "nm_vector"
    in_words = "N:M patterns, as stored"
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    holds = "any pattern"
    streams = ("weight_packed", "weight_index")
    tensor_names = (*streams, SCALE)
    linear_op = ops.nm_vector_linear
    reference: ClassVar[Reference] = reference
    short_names = ("2:4", "2:4-int8", "8:32-L32")

    def options_named(self, text: str) -> Mapping[str, Any] | None:
        return options_named(text)

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 2, "m": 4},
            {"n": 8, "m": 32, "vector_length": 32},
            {"n": 3, "m": 5, "vector_length": 2},
        )
        codes: tuple[Mapping[str, Any], ...] = (
            {"n": 2, "m": 4, "values": "int8"},
            {"n": 2, "m": 4, "values": "fp8_e4m3", "activations": "fp8_e4m3"},
            {"n": 8, "m": 32, "vector_length": 32, "values": SMALLEST.name, "group": 64},
        )
        return (
            *(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns),
            *(self.scheme(torch.bfloat16, options) for options in codes),
        )

    def options_for(self, weight: Tensor) -> Mapping[str, int] | None:
        """2:4, or N:32 for vectors of 32 rows; other patterns are not looked for."""
        found = []
        for m, length, most, step in _LOOKED_FOR:
            used = columns_used(weight, m, length, most)
            if 0 < used <= most:
                vectors = {"vector_length": length} if length > 1 else {}
                found.append({"n": max(1, -(-used // step)) * step, "m": m, **vectors})
        return min(found, key=lambda options: options["n"] / options["m"], default=None)

    def row_places(self, scheme: Scheme, shape: tuple[int, int], device: torch.device) -> Tensor:
        return torch.arange(shape[1], dtype=torch.int32, device=device)[None]

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options = options_of(scheme)
        rows, kept, found = shape[0], options.kept(shape[1]), quantization_of(scheme)
        specs = {
            "weight_packed": TensorSpec(value_bits(scheme.dtype), (rows, kept)),
            "weight_index": TensorSpec(
                torch.uint8, (options.groups(rows), options.index_bytes(shape[1]))
            ),
        }
        if found is not None:
            specs["weight_packed"] = TensorSpec(torch.uint8, (rows, found.type.code_bytes(kept)))
            specs[SCALE] = found.scale_spec(scheme.dtype, shape)
        return specs

    def fits(self, options: PatternOptions) -> bool:
        return True

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        return PackedWeight(scheme, shape, stored)

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        return packed.tensors

    def codes(self, packed: PackedWeight) -> Tensor:
        """Codes as float16 numbers [out_features, in_features], zeros included."""
        return stored_codes(packed.tensors, options_of(packed.scheme), packed.shape)

    def unpack(self, packed: PackedWeight) -> Tensor:
        pattern, tensors = options_of(packed.scheme).numbers, _readable(packed)
        stored = tensors["weight_packed"], tensors["weight_index"]
        codes = value_arguments(packed.scheme, tensors)
        weight = ops.nm_vector_unpack(*stored, *packed.shape, *pattern, packed.dtype, *codes)
        return weight.to(packed.device)

    def check(self, packed: PackedWeight) -> None:
        self._validate(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self._validate(packed))

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        """The first form of the device that fits the pattern, else one for any zeros."""
        if device.type not in _FORMS:
            return scheme
        for form in _FORMS[device.type]:
            if scheme.dtype in form.dtypes and form.fits(options_of(scheme)):
                return form.scheme(scheme.dtype, scheme.values)
        if scheme.quantization is not None:
            return scheme  # codes stay in a format of patterns
        unstructured = InterleavedBitmap() if device.type == "cpu" else TiledBitmap()
        if scheme.dtype in unstructured.dtypes:
            return unstructured.scheme(scheme.dtype)
        return scheme

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {LIBRARY: Implementation(None, "torch's own linear on the unpacked weight")}

    def _validate(self, packed: PackedWeight) -> Tensor:
        options, found = options_of(packed.scheme), quantization_of(packed.scheme)
        tensors = _readable(packed)
        if found is not None:
            found.require_scales(tensors[SCALE], packed.dtype)
        stored = tensors["weight_packed"], tensors["weight_index"]
        return ops.nm_vector_validate(*stored, *packed.shape, *options.numbers, options.values)


def _readable(packed: PackedWeight) -> dict[str, Tensor]:
    """The tensors of a weight by name, where there are kernels for them."""
    return {name: where_kernels_are(tensor.detach()) for name, tensor in packed.tensors.items()}
