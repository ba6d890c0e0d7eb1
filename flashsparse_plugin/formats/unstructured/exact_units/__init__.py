# SPDX-License-Identifier: Apache-2.0
"""The form in which exact bf16 weights in 12 bits run on a GPU; never written to disk.

Signs, 4-bit codes of exponents and fractions lie as registers of tensor cores take them, in units
of 16 x 256. Elements whose exponent has no code lie beside them: a few of each unit in slots, the
others in a list. The layout is in kernels/formats/exact_units.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ....packed import Format, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import FEW, LIBRARY, MANY, Implementation, Plan, limits_of
from ...units import unit_grid
from . import layout, reference, rows
from .check import require_valid
from .ops import ops


class ExactUnits(Format):
    name = "exact_units"
    in_words = "any bf16 weight, exact in 12 bits, GPU"
    planner = "exact_units"
    version = 1
    on_disk = False
    dtypes = (torch.bfloat16,)
    sparse = "dense tensor cores on decoded weights"
    tensor_names = layout.NAMES
    bucket = 0.0002  # of listed; ordinary layers list less than half of it
    reference: ClassVar[Reference] = reference

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        down, across = unit_grid(*shape)
        specs = (
            TensorSpec(torch.int32, (down, across, layout.UNIT_WORDS)),
            TensorSpec(torch.float32, (shape[0], 1)),
            TensorSpec(torch.int32, (down, across, None)),
            TensorSpec(torch.int32, (None, 2)),
            TensorSpec(torch.int32, (down + 1,)),
        )
        return dict(zip(layout.NAMES, specs, strict=True))

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        shape = (weight.shape[0], weight.shape[1])
        return PackedWeight(scheme, shape, layout.pack(weight.detach()))

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
        return {
            FEW: Implementation(None, "tensor cores on decoded weights, for few tokens: mma"),
            MANY: Implementation(None, "tensor cores on decoded weights: wgmma", (9, 0)),
            LIBRARY: super().implementations(scheme)[LIBRARY],
        }

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        """To the form on disk without the dense weight in between."""
        if target.format.tensor_names != layout.STORED or target.dtype != packed.dtype:
            return super().transcode(packed, target, device)
        stored = layout.stored(packed.tensors, packed.shape)
        return PackedWeight(target, packed.shape, stored).to(device)
