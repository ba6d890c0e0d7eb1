# SPDX-License-Identifier: Apache-2.0
"""nm_vector: of every M columns N are kept, the same ones for L rows (NM-SpMM, section II).

2:4 is n=2, m=4, vector_length=1. The layout is in kernels/formats/nm_vector.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu, unpacked_seconds
from ...packed import Format, PackedWeight, Reference, Scheme, TensorSpec, rules
from ...plan import Implementation, Plan
from ..interleaved_bitmap import InterleavedBitmap
from ..nm_gather import NMGather
from ..nm_panels import NMPanels
from ..nm_pattern import PatternOptions, options_of, pack_vectors
from ..nm_spmm import NMSpmm
from ..pattern_form import UNPACK_MEMORY, PatternForm
from ..sparse_24 import Sparse24
from ..tiled_csl import TiledCSL
from ..values import value_bits
from . import reference
from .ops import ops

_FORMS: Mapping[str, tuple[PatternForm, ...]] = {
    "cpu": (NMPanels(),),
    "cuda": (NMGather(), Sparse24(), NMSpmm()),
}
"""By device, the forms in which kernels read patterns, the fastest first."""


class NMVector(Format):
    name = "nm_vector"
    version = 1
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    Options = PatternOptions
    tensor_names = ("weight_packed", "weight_index")
    reference: ClassVar[Reference] = reference

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 2, "m": 4},
            {"n": 8, "m": 32, "vector_length": 32},
            {"n": 3, "m": 5, "vector_length": 2},
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return options_of(scheme).keep_largest(weight)

    def options_for(self, weight: Tensor) -> Mapping[str, int] | None:
        """2:4 for a weight that follows it: other patterns are not looked for."""
        return {"n": 2, "m": 4} if PatternOptions(n=2, m=4).is_followed_by(weight) else None

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        options = options_of(scheme)
        index = (options.groups(shape[0]), options.index_bytes(shape[1]))
        return {
            "weight_packed": TensorSpec(
                value_bits(scheme.dtype), (shape[0], options.kept(shape[1]))
            ),
            "weight_index": TensorSpec(torch.uint8, index),
        }

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            tensors = pack_vectors(weight.detach().cpu(), options_of(scheme))
        return self._named(tensors, scheme, weight.shape).to(weight.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        values, index = (packed.tensors[name].cpu() for name in self.tensor_names)
        pattern = options_of(packed.scheme).numbers
        weight = ops.nm_vector_unpack(values, index, *packed.shape, *pattern, packed.dtype)
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
        values, index = (tensors[name] for name in self.tensor_names)
        pattern = options_of(scheme).numbers
        return ops.nm_vector_linear(x, values, index, shape[0], *pattern, scheme.dtype, bias)

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
        unstructured = InterleavedBitmap() if device.type == "cpu" else TiledCSL()
        if scheme.dtype in unstructured.dtypes:
            return unstructured.scheme(scheme.dtype)
        return scheme

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        for form in _FORMS.get(device.type, ()):
            if target.format is form:
                values, index = (packed.tensors[name].to(device) for name in self.tensor_names)
                return form.arrange(values, index, target, packed.shape)
        return super().transcode(packed, target, device)

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).vector_length, options_of(scheme).m

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        """Takes values and positions as they are, where the positions start on a byte."""
        options = options_of(packed.scheme)
        first, last = columns.start // options.m * options.n, options.kept(columns.stop)
        bits = options.index_bits
        if first * bits % 8 or (last * bits % 8 and columns.stop != packed.shape[1]):
            return super()._cut(packed, rows, columns)
        values, index = (packed.tensors[name] for name in self.tensor_names)
        groups = slice(rows.start // options.vector_length, options.groups(rows.stop))
        parts = (
            values[rows.start : rows.stop, first:last].contiguous(),
            index[groups, first * bits // 8 : -(-last * bits // 8)].contiguous(),
        )
        return self._named(parts, packed.scheme, (len(rows), len(columns)))

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        tensors = [torch.cat([part.tensors[name] for part in parts]) for name in self.tensor_names]
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        return self._named(tensors, parts[0].scheme, shape)

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
        self, tensors: Sequence[Tensor], scheme: Scheme, shape: Sequence[int]
    ) -> PackedWeight:
        named = dict(zip(self.tensor_names, tensors, strict=True))
        return PackedWeight(scheme, (shape[0], shape[1]), named)

    def _validate(self, packed: PackedWeight) -> Tensor:
        values, index = (packed.tensors[name].detach().cpu() for name in self.tensor_names)
        return ops.nm_vector_validate(
            values, index, *packed.shape, *options_of(packed.scheme).numbers
        )
