# SPDX-License-Identifier: Apache-2.0
"""nm_vector: of every M columns N are kept, the same ones for L rows (NM-SpMM, section II).

2:4 is n=2, m=4, vector_length=1. The layout is in kernels/formats/nm_vector.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....gpu import Gpu, unpacked_seconds
from ....ops import where_kernels_are
from ....packed import PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Implementation, Plan
from ...unstructured.interleaved_bitmap import InterleavedBitmap
from ...unstructured.tiled_bitmap import TiledBitmap
from ...values.dtypes import value_bits
from ...values.types import require_scales, scale_count, scale_dtype
from ..cpu_panels import NMPanels, NMRows
from ..form import UNPACK_MEMORY, PatternFormat, RuntimeForm
from ..nm_gather import NMGather
from ..nm_spmm import NMSpmm
from ..options import (
    columns_used,
    options_named,
    options_of,
    store,
    store_codes,
    value_arguments,
)
from ..parts import cut, join
from ..sparse_24 import Sparse24
from . import reference
from .ops import ops

_FORMS: Mapping[str, tuple[RuntimeForm, ...]] = {
    "cpu": (NMPanels(), NMRows()),
    "cuda": (NMGather(), Sparse24(), NMSpmm()),
}
"""By device, the forms in which kernels read patterns, the fastest first."""

# M, L, the largest N that `options_for` finds, and what N is a multiple of for the fast kernels.
_LOOKED_FOR = ((4, 1, 2, 2), (32, 32, 28, 4))


class NMVector(PatternFormat):
    name = "nm_vector"
    in_words = "N:M patterns, as stored"
    version = 1
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    tensor_names = ("weight_packed", "weight_index", "weight_scale")
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
            {"n": 8, "m": 32, "vector_length": 32, "values": "int4", "group": 64},
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

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options = options_of(scheme)
        rows, kept, values = shape[0], options.kept(shape[1]), options.value_type
        specs = {
            "weight_packed": TensorSpec(value_bits(scheme.dtype), (rows, kept)),
            "weight_index": TensorSpec(
                torch.uint8, (options.groups(rows), options.index_bytes(shape[1]))
            ),
        }
        if values is not None:
            scales = (rows, scale_count(shape[1], options.group))
            specs["weight_packed"] = TensorSpec(torch.uint8, (rows, values.code_bytes(kept)))
            specs["weight_scale"] = TensorSpec(scale_dtype(scheme.dtype, options.group), scales)
        return specs

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        return self._named(store(weight, options_of(scheme)), scheme, weight.shape)

    def takes_codes(self, values: str, group: int | None) -> bool:
        return True

    def pack_codes(self, codes: Tensor, scales: Tensor, scheme: Scheme) -> PackedWeight:
        numbers, stored = self.require_codes(codes, scales, scheme)
        return self._named(store_codes(numbers, stored, options_of(scheme)), scheme, codes.shape)

    def codes(self, packed: PackedWeight) -> Tensor:
        """Codes as float16 numbers [out_features, in_features], zeros included."""
        options, tensors = options_of(packed.scheme), _readable(packed)
        stored = tensors["weight_packed"], tensors["weight_index"]
        codes = ops.nm_vector_unpack(
            *stored, *packed.shape, *options.numbers, torch.float16, None, options.values
        )
        return codes.to(packed.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        pattern, tensors = options_of(packed.scheme).numbers, _readable(packed)
        stored = tensors["weight_packed"], tensors["weight_index"]
        codes = value_arguments(packed.scheme, tensors)
        weight = ops.nm_vector_unpack(*stored, *packed.shape, *pattern, packed.dtype, *codes)
        return weight.to(packed.device)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> Tensor:
        stored = tensors["weight_packed"], tensors["weight_index"]
        pattern, codes = options_of(scheme).numbers, value_arguments(scheme, tensors)
        return ops.nm_vector_linear(
            x, *stored, shape[0], *pattern, scheme.dtype_number, bias, *codes
        )

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
        if options_of(scheme).value_type:
            return scheme  # codes stay in a format of patterns
        unstructured = InterleavedBitmap() if device.type == "cpu" else TiledBitmap()
        if scheme.dtype in unstructured.dtypes:
            return unstructured.scheme(scheme.dtype)
        return scheme

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """To any pattern that the weight follows; codes of one type and group stay as they are."""
        if not isinstance(target.format, PatternFormat):
            return super().transcode(packed, target, device)
        stored = self._restored(packed, self.scheme(target.dtype, target.values), device)
        if not isinstance(target.format, RuntimeForm):
            return PackedWeight(target, stored.shape, stored.tensors)
        target.format.tell_of_activations(target, device)
        return target.format.arrange(stored.tensors, target, stored.shape)

    def _restored(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """The weight in this format with other options, on a device."""
        old, new = options_of(packed.scheme), options_of(target)
        if target == packed.scheme:
            return packed.to(device)
        if new.value_type is None or (old.values, old.group) != (new.values, new.group):
            return self.pack(self.unpack(packed).to(device), target)
        scales = packed.tensors["weight_scale"].to(device)
        return self.pack_codes(self.codes(packed).to(device), scales, target)

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        options = options_of(packed.scheme)
        part = cut(packed.tensors, options, rows, columns, packed.shape[1])
        return self._named(part, packed.scheme, (len(rows), len(columns)))

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        return self._named(join([part.tensors for part in parts]), parts[0].scheme, shape)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {"library": Implementation(None, "torch's own linear on the unpacked weight")}

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        return unpacked_seconds(shape, nbytes, tokens, gpu, UNPACK_MEMORY, scheme.dtype.itemsize)

    def _named(
        self, tensors: Mapping[str, Tensor], scheme: Scheme, shape: Sequence[int]
    ) -> PackedWeight:
        return PackedWeight(scheme, (shape[0], shape[1]), tensors)

    def _validate(self, packed: PackedWeight) -> Tensor:
        options, tensors = options_of(packed.scheme), _readable(packed)
        if options.value_type:
            require_scales(tensors["weight_scale"], options.value_type, packed.dtype)
        stored = tensors["weight_packed"], tensors["weight_index"]
        return ops.nm_vector_validate(*stored, *packed.shape, *options.numbers, options.values)


def _readable(packed: PackedWeight) -> dict[str, Tensor]:
    """The tensors of a weight by name, where there are kernels for them."""
    return {name: where_kernels_are(tensor.detach()) for name, tensor in packed.tensors.items()}
