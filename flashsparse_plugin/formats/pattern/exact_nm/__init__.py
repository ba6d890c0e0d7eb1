# SPDX-License-Identifier: Apache-2.0
"""exact_nm: N:M patterns whose bf16 values take 12 bits, bit for bit.

Positions are those of nm_vector. The values that it keeps are a matrix of their own, [out_features,
kept], which is stored as lossless stores a weight. Specified in docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import model_validator
from torch import Tensor

from ....packed import (
    Format,
    PackedWeight,
    Reference,
    Scheme,
    TensorSpec,
    reason_of_exceptions,
)
from ....plan import LIBRARY, Implementation, Plan
from ...unstructured.exact_units import ExactUnits
from ...unstructured.lossless import Lossless
from ...unstructured.lossless.window import count_exceptions
from ...values.dtypes import count_changed
from ..nm_vector import NMVector
from ..options import EXACT, PatternOptions, exact_options_named, options_of
from . import reference


class ExactOptions(PatternOptions):
    """The pattern, as `PatternOptions` has it; values are bf16."""

    @model_validator(mode="after")
    def _be_exact(self) -> ExactOptions:
        if self.values != "native":
            raise ValueError(
                f"option values: exact_nm has bf16 values in 12 bits, and {self.values} rounds "
                "them. Remedy: leave it out, or the format nm_vector"
            )
        return self

    @property
    def title(self) -> str:
        """ "2:4, e4m7": bf16 values whose exponents are codes of four bits."""
        return f"{super().title}, {EXACT}"


class ExactNM(Format):
    name = "exact_nm"
    in_words = "N:M patterns, bf16 values exact in 12 bits"
    version = 1
    dtypes = (torch.bfloat16,)
    Options = ExactOptions
    tensor_names = (*Lossless.streams, "weight_index")
    reference: ClassVar[Reference] = reference
    short_names = ("2:4-e4m7",)
    rounds = False
    bucket = Lossless.bucket

    def options_named(self, text: str) -> Mapping[str, Any] | None:
        return exact_options_named(text)

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, int], ...] = (
            {"n": 2, "m": 4},
            {"n": 8, "m": 32, "vector_length": 32},
            {"n": 3, "m": 5, "vector_length": 2},
        )
        return tuple(self.scheme(torch.bfloat16, options) for options in patterns)

    def options_for(self, weight: Tensor) -> Mapping[str, int] | None:
        """As of nm_vector; None for what it would round, and for more exceptions than pay."""
        options = NMVector().options_for(weight)
        if options is None or count_changed(weight, torch.bfloat16):
            return None
        listed = count_exceptions(weight.to(torch.bfloat16))
        return None if reason_of_exceptions(listed, weight.numel()) else options

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        own = NMVector().tensors(_in_16_bits(scheme), shape)
        return {
            **Lossless().tensors(_KEPT, _kept_shape(scheme, shape)),
            "weight_index": own["weight_index"],
        }

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return options_of(scheme).keep_largest(weight)

    def pattern(self, scheme: Scheme) -> tuple[int, int, int]:
        return options_of(scheme).numbers

    def grain(self, scheme: Scheme) -> tuple[int | None, int | None]:
        return options_of(scheme).grain

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        return _exact(NMVector().pack(weight, _in_16_bits(scheme)), scheme)

    def unpack(self, packed: PackedWeight) -> Tensor:
        return _of_16_bits(packed).unpack()

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """By the 16-bit values; layers run in another form."""
        same = _of_16_bits(PackedWeight(scheme, shape, tensors))
        return same.format.multiply(x, same.scheme, shape, same.tensors, bias, plan)

    def check(self, packed: PackedWeight) -> None:
        kept = _kept(packed)
        kept.format.check(kept)
        self.nonzeros(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return NMVector().nonzeros(_of_16_bits(packed))

    def exceptions(self, scheme: Scheme, shape: tuple[int, int], nbytes: int) -> int | None:
        options = options_of(scheme)
        index = options.groups(shape[0]) * options.index_bytes(shape[1])
        return Lossless().exceptions(_KEPT, _kept_shape(scheme, shape), nbytes - index)

    def exceptions_in(self, weight: Tensor) -> int:
        return count_exceptions(weight)

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        """12 bits where sparse tensor cores take the pattern; else the 16 bits of nm_vector."""
        if device.type == "cuda" and options_of(scheme).embeds_in_24:
            return ExactUnits().scheme(scheme.dtype, {"two_of_four": True})
        if device.type in ("cpu", "cuda"):
            return NMVector().runtime(_in_16_bits(scheme), device)
        return scheme

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        return _of_16_bits(packed).transcode(target, device)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {LIBRARY: Implementation(None, "torch's own linear on the unpacked weight")}

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        return _exact(NMVector().cut(_of_16_bits(packed), rows, columns), packed.scheme)

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        return _exact(NMVector().join([_of_16_bits(part) for part in parts]), parts[0].scheme)


_KEPT = Lossless().scheme(torch.bfloat16)


def _kept_shape(scheme: Scheme, shape: tuple[int, int]) -> tuple[int, int]:
    return shape[0], options_of(scheme).kept(shape[1])


def _kept(packed: PackedWeight) -> PackedWeight:
    """The matrix of kept values."""
    own = {name: packed.tensors[name] for name in Lossless.streams}
    return PackedWeight(_KEPT, _kept_shape(packed.scheme, packed.shape), own)


def _in_16_bits(scheme: Scheme) -> Scheme:
    """That of nm_vector with the same pattern."""
    n, m, length = options_of(scheme).numbers
    return NMVector().scheme(scheme.dtype, {"n": n, "m": m, "vector_length": length})


def _of_16_bits(packed: PackedWeight) -> PackedWeight:
    """The same weight in nm_vector."""
    tensors = {
        "weight_packed": _kept(packed).unpack().view(torch.int16),
        "weight_index": packed.tensors["weight_index"],
    }
    return PackedWeight(_in_16_bits(packed.scheme), packed.shape, tensors)


def _exact(packed: PackedWeight, scheme: Scheme) -> PackedWeight:
    """The inverse of `_of_16_bits`."""
    kept = Lossless().pack(packed.tensors["weight_packed"].view(torch.bfloat16), _KEPT)
    index = packed.tensors["weight_index"]
    return PackedWeight(scheme, packed.shape, {**kept.tensors, "weight_index": index})
