# SPDX-License-Identifier: Apache-2.0
"""The form in which exact bf16 weights in 12 bits run on a GPU; never written to disk.

Signs, 4-bit codes of exponents and fractions lie as registers of tensor cores take them, in units
of 16 x 256: of all columns, or of the two that a 2:4 weight keeps of every four. Elements whose
exponent has no code lie beside them: a few of each unit in slots, the
others in a list. The layout is in kernels/formats/exact_units.h.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ....gpu import LAUNCH, Gpu
from ....ops.plan import Product, plan
from ....packed import Format, FormatError, Options, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import FEW, LIBRARY, MANY, Implementation, Plan, limits_of
from ....rules import rules
from ...pattern.options import PatternOptions, columns_used
from ...units import unit_grid
from . import layout, reference, rows
from .check import require_valid
from .ops import ops

TWO_OF_FOUR = PatternOptions(n=2, m=4)
_WIDENED = 4608  # bytes of a unit of sparse_24
_MOST_WIDENED = 256 << 20  # kernels/bindings/exact_units_cuda.cpp


class UnitOptions(Options):
    """Options of exact_units.

    Attributes:
        two_of_four: Whether units hold two of every four columns, the others being zero.
    """

    two_of_four: bool = False

    @property
    def title(self) -> str:
        return "2:4" if self.two_of_four else ""


class ExactUnits(Format):
    name = "exact_units"
    in_words = "any bf16 weight, exact in 12 bits, GPU"
    planner = "exact_units"
    version = 1
    on_disk = False
    dtypes = (torch.bfloat16,)
    Options = UnitOptions
    sparse = "tensor cores on decoded weights"
    tensor_names = layout.NAMES
    bucket = 0.0002  # of listed; ordinary layers list less than half of it
    reference: ClassVar[Reference] = reference

    def examples(self) -> tuple[Scheme, ...]:
        return tuple(self.scheme(torch.bfloat16, {"two_of_four": each}) for each in (False, True))

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return TWO_OF_FOUR.keep_largest(weight) if holds_24(scheme) else weight

    def pattern(self, scheme: Scheme) -> tuple[int, int, int] | None:
        return TWO_OF_FOUR.numbers if holds_24(scheme) else None

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        down, across = unit_grid(*shape)
        words = layout.UNIT_WORDS_24 if holds_24(scheme) else layout.UNIT_WORDS
        specs = (
            TensorSpec(torch.int32, (down, across, words)),
            TensorSpec(torch.float32, (shape[0], 1)),
            TensorSpec(torch.int32, (down, across, None)),
            TensorSpec(torch.int32, (None, 2)),
            TensorSpec(torch.int32, (down + 1,)),
        )
        return dict(zip(layout.NAMES, specs, strict=True))

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        shape, two_of_four = (weight.shape[0], weight.shape[1]), holds_24(scheme)
        if two_of_four and columns_used(weight, 4, 1, 2) > 2:
            raise FormatError(
                f"a weight of shape {list(shape)} keeps more than two of some four columns: prune "
                "it to 2:4, or use the format lossless, which holds any weight"
            )
        return PackedWeight(scheme, shape, layout.pack(weight.detach(), two_of_four))

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes this form of the tensors of lossless by name, valid ones, where they are."""
        return PackedWeight(scheme, shape, layout.arrange(stored, shape))

    def unpack(self, packed: PackedWeight) -> Tensor:
        return ops.exact_units_unpack(*packed.tensors.values(), *packed.shape)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        held = map(tensors.__getitem__, layout.NAMES)
        return ops.exact_units_linear(
            x, *held, shape[0], scheme.dtype_number, bias, *limits_of(plan, 2)
        )

    def read_rows(self, ids: Tensor, tensors: Mapping[str, Tensor], in_features: int) -> Tensor:
        return rows.read_rows(ids, tensors, in_features)

    def check(self, packed: PackedWeight) -> None:
        require_valid(packed.tensors, packed.shape)

    def nonzeros(self, packed: PackedWeight) -> int:
        units = packed.tensors["units"]
        coded = sum(int((layout.halves_of(row[None]) & 0x0780).count_nonzero()) for row in units)
        return coded + len(layout.exceptions_of(packed.tensors).rows)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        library = super().implementations(scheme)[LIBRARY]
        if holds_24(scheme):
            what = f"wgmma on units of sparse_24, made of these; elsewhere {library.what}"
            library = library._replace(what=what)
        return {
            FEW: Implementation(None, f"{self.sparse}, for few tokens: mma"),
            MANY: Implementation(None, f"{self.sparse}: wgmma", (9, 0)),
            LIBRARY: library,
        }

    def library_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        """As of any format; units of 2:4 become those of sparse_24 where wgmma multiplies these."""
        widened = math.prod(unit_grid(*shape)) * _WIDENED
        if not holds_24(scheme) or gpu.capability != (9, 0) or widened > _MOST_WIDENED:
            return super().library_seconds(scheme, shape, nbytes, tokens, gpu)
        product = Product(shape, tokens, widened, pattern=TWO_OF_FOUR.numbers)
        with rules():
            seconds = plan("sparse_24.many", product, gpu).seconds
        return (nbytes + widened) / (self.unpacking[0] * gpu.memory) + LAUNCH + seconds

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """To lossless without the dense weight in between."""
        is_lossless = target.format.tensor_names == layout.STORED and target.dtype == packed.dtype
        if holds_24(packed.scheme) or not is_lossless:
            return super().transcode(packed, target, device)
        stored = layout.stored(packed.tensors, packed.shape)
        return PackedWeight(target, packed.shape, stored).to(device)


def holds_24(scheme: Scheme) -> bool:
    """Whether units hold two of every four columns."""
    assert isinstance(scheme.options, UnitOptions)
    return scheme.options.two_of_four
