# SPDX-License-Identifier: Apache-2.0
"""The form in which a pattern that keeps two of every four columns runs on sparse tensor cores.

2:4, and whatever embeds in it: 1:4, 1:2, at most two of a longer window of whole fours. Values and
positions lie as the instruction takes them: in 9 bits a weight, 5 with codes of 8 bits, 3.1 with
ones of 4. Never written to disk. The layout is in kernels/formats/sparse_24.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.cuda import get_device_properties

from ....gpu import Gpu
from ....ops.plan import Product
from ....packed import FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import FEW, LIBRARY, MANY, SPARSE, Implementation, Plan, limits_of
from ...two_of_four import require_rising
from ...units import UNIT_COLS, UNIT_ROWS, slabs, unit_grid, unit_rows
from ...values.quantization import SCALE, quantization_of
from ...values.types import SMALLEST, VALUE_TYPES
from ..form import PatternFormat
from ..options import (
    PatternOptions,
    columns_used,
    options_of,
    store,
    store_codes,
    value_arguments,
)
from . import layout, reference
from .experts import Experts24
from .ops import ops


class Sparse24(Experts24, PatternFormat):
    name = "sparse_24"
    in_words = "2:4 on sparse tensor cores, GPU"
    planner = "sparse_24"
    on_disk = False
    holds = "patterns that keep at most two of every four aligned columns"
    sparse = "sparse tensor cores"
    streams = ("units",)
    tensor_names = (*streams, SCALE)
    linear_op = ops.sparse_24_linear
    limits = 2
    reference: ClassVar[Reference] = reference

    def fits(self, options: PatternOptions) -> bool:
        return options.embeds_in_24

    def examples(self) -> tuple[Scheme, ...]:
        patterns: tuple[Mapping[str, Any], ...] = (
            {"n": 2, "m": 4},
            {"n": 1, "m": 2, "vector_length": 4},
            {"n": 2, "m": 8, "vector_length": 2},
            *({"n": 2, "m": 4, "values": name} for name in VALUE_TYPES),
            {"n": 2, "m": 4, "values": "int8", "group": 64},
            {"n": 2, "m": 4, "values": SMALLEST.name, "group": 128},
        )
        return tuple(self.scheme(dtype, options) for dtype in self.dtypes for options in patterns)

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        own = layout.layout_of(options_of(scheme))
        specs = {"units": TensorSpec(torch.int32, (*unit_grid(*shape), own.words))}
        if own.has_row_scales:
            specs[SCALE] = TensorSpec(torch.float32, (shape[0], 1))
        return specs

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        options = self.require_fit(scheme, shape)
        tensors = {"units": layout.arrange(stored, shape, options)}
        if layout.layout_of(options).has_row_scales:
            tensors[SCALE] = stored[SCALE]
        return PackedWeight(scheme, shape, tensors)

    def stored(self, packed: PackedWeight) -> Mapping[str, Tensor]:
        options = options_of(packed.scheme)
        if options.value_type is None:
            return store(self.unpack(packed), options)
        return store_codes(*self.codes(packed), options)

    def codes(self, packed: PackedWeight) -> tuple[Tensor, Tensor]:
        """Of a weight with codes: float16 numbers [out_features, in_features], and scales."""
        own = layout.layout_of(options_of(packed.scheme))
        assert own.type is not None
        bits = layout.bits_of(packed.tensors["units"], packed.shape, own)
        return own.type.numbers(bits), self._scales(packed)

    def unpack(self, packed: PackedWeight) -> Tensor:
        return ops.sparse_24_unpack(
            packed.tensors["units"],
            *packed.shape,
            packed.dtype,
            *value_arguments(packed.scheme, packed.tensors),
        )

    def multiplies_codes(self, scheme: Scheme, device: torch.device) -> bool:
        if device.type != "cuda":
            return False
        found = get_device_properties(device)  # which torch.compile takes for a constant
        return _multiplies_codes(options_of(scheme), (found.major, found.minor))

    def multiply_codes(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        """By a W8A8 kernel.

        int8 products are added exactly, so results do not depend on the batch, whichever kernel
        runs. fp8 products are added in an order that depends on the number of tokens.
        """
        units, scales = tensors["units"], tensors[SCALE]
        values = options_of(scheme).activations
        few = None if plan is None else plan.few_tokens
        return ops.sparse_24_linear_rounded(
            x, units, scales, shape[0], scheme.dtype_number, values, bias, few
        )

    def told(
        self,
        scheme: Scheme,
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> tuple[Any, ...]:
        """Nothing of the pattern: units say which columns they keep."""
        limits = limits_of(plan, self.limits)
        return (scheme.dtype_number, bias, *limits, *value_arguments(scheme, tensors))

    def check(self, packed: PackedWeight) -> None:
        """No word is an address; but positions that do not rise are undefined behaviour of mma.

        Codes may not be NaN, which kernels do not know, and scales may not be so either. What lies
        beyond the weight's edge meets zeros of x, which an infinity would make NaN of.
        """
        options, (rows, columns) = options_of(packed.scheme), packed.shape
        own, units = layout.layout_of(options_of(packed.scheme)), packed.tensors["units"]
        found = quantization_of(packed.scheme)
        if found is not None:
            found.require_scales(self._scales(packed), packed.dtype)
        for slab in slabs(len(units) * UNIT_ROWS, units.shape[1] * UNIT_COLS, layout.SLAB_ROWS):
            held = units[unit_rows(slab)]
            require_rising(layout.metadata_of(held, own), slab.start)
            if found is not None and found.type.has_nan(layout.values_of(held, own)):
                raise FormatError("units have a code that is NaN")
            kept = layout.kept_of(held, own)
            if bool(kept[:, columns:].any() | kept[max(rows - slab.start, 0) :].any()):
                raise FormatError("units have values beyond the weight's edge")
            used = columns_used(kept, options.m, options.vector_length, options.n)
            if used > options.n:
                raise FormatError(
                    f"units have values in {used} columns of {options.m} and "
                    f"{options.vector_length} rows: {options.title} keeps {options.n}"
                )
        if own.group is not None and layout.has_scales_beyond(units, packed.shape, own):
            raise FormatError("units have scales beyond the weight's edge")

    def nonzeros(self, packed: PackedWeight) -> int:
        own, units = layout.layout_of(options_of(packed.scheme)), packed.tensors["units"]
        found = 0
        for slab in slabs(len(units), units.shape[1] * UNIT_COLS, layout.SLAB_ROWS):
            values = layout.values_of(units[slab], own)
            found += int(layout.magnitudes_of(values, own).count_nonzero())
        return found

    def _scales(self, packed: PackedWeight) -> Tensor:
        """Scales of rows or groups, as nm_vector stores them."""
        own = layout.layout_of(options_of(packed.scheme))
        if own.has_row_scales:
            return packed.tensors[SCALE]
        return layout.scales_of(packed.tensors["units"], packed.shape, own, packed.dtype)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        """One for rounded activations: the op chooses among its kernels for codes by itself."""
        known = super().implementations(scheme)
        if scheme.rounds_activations:
            return {SPARSE: known[SPARSE]}
        return {
            FEW: Implementation(None, "sparse tensor cores for few tokens: mma.sp"),
            MANY: Implementation(None, "sparse tensor cores for many tokens: wgmma.sp", (9, 0)),
            LIBRARY: known[LIBRARY],
        }

    def product(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> Product:
        rounds = _multiplies_codes(options_of(scheme), gpu.capability)
        return replace(super().product(scheme, shape, nbytes, tokens, gpu), quantizes_x=rounds)


def _multiplies_codes(options: PatternOptions, capability: tuple[int, int]) -> bool:
    """Whether a GPU has a W8A8 kernel.

    int8 on all; fp8 where tensor cores multiply it: by mma on 8.9 and 12, by wgmma on 9.0.
    Quantized values with group scales have none.
    """
    if options.activations == "native" or options.group:
        return False
    return options.activations == "int8" or capability in ((8, 9), (9, 0)) or capability[0] == 12
