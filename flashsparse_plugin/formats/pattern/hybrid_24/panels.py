# SPDX-License-Identifier: Apache-2.0
"""hybrid_panels: codes of both kinds of units on a CPU; never on disk.

Entries of 16 rows lie side by side, as in nm_rows; a dense unit has four of each window, which an
activation is broadcast to, and no positions. The layout is in kernels/formats/cpu_panels.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ....packed import Format, FormatError, PackedWeight, Reference, Scheme, TensorSpec
from ....plan import Plan
from ...units import unit_grid
from ...values.dtypes import bits_as
from ...values.quantization import SCALE, require_quantized
from ...values.types import SMALLEST, scale_count, scale_dtype
from ..cpu_panels.panels import ROWS, by_panel, by_row
from . import panels_reference
from .forms import by_streams
from .layout import in_both_kinds, require_streams, stored_tensors, stream_sizes
from .ops import ops
from .options import HybridOptions, hybrid_options


class HybridPanels(Format):
    name = "hybrid_panels"
    in_words = "2:4 and dense blocks, CPU"
    version = 1
    on_disk = False
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    Options = HybridOptions
    tensor_names = ("values", "positions", "kinds", "scales")
    reference: ClassVar[Reference] = panels_reference

    def examples(self) -> tuple[Scheme, ...]:
        return (
            self.scheme(torch.bfloat16, {"values": "int8"}),
            self.scheme(torch.float16, {"values": SMALLEST.name, "group": 32}),
            self.scheme(torch.float32, {"values": "fp8_e4m3"}),
        )

    def conform(self, weight: Tensor, scheme: Scheme) -> Tensor:
        return require_quantized(scheme).conform(in_both_kinds(weight))

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        group, panels = hybrid_options(scheme).group, -(-shape[0] // ROWS)
        return {
            "values": TensorSpec(torch.uint8, (None, ROWS)),
            "positions": TensorSpec(torch.int32, (None, ROWS)),
            "kinds": TensorSpec(torch.uint8, unit_grid(*shape)),
            "scales": TensorSpec(
                scale_dtype(scheme.dtype, group), (panels, scale_count(shape[1], group), ROWS)
            ),
        }

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        found = require_quantized(scheme)
        numbers, scales = found.require_codes(*found.quantise(weight.detach()), scheme)
        codes = numbers.to(found.type.dtype).view(torch.uint8)
        shape = (weight.shape[0], weight.shape[1])
        return self.arrange(stored_tensors(codes, scales, found.type), scheme, shape)

    def arrange(
        self, stored: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]
    ) -> PackedWeight:
        """Makes panels of the tensors of hybrid_24 by name, valid ones, where they are."""
        type, rows = require_quantized(scheme).type, shape[0]
        own = stream_sizes(stored["weight_kinds"], shape, type)
        values, index = (
            by_panels(stored[name], sizes, rows)
            for name, sizes in zip(("weight_packed", "weight_index"), own, strict=True)
        )
        words = [bits_as(F.pad(each, (0, -each.shape[1] % 4)), torch.int32) for each in index]
        return PackedWeight(
            scheme,
            shape,
            {
                "values": torch.cat([each.T for each in values]).contiguous(),
                "positions": torch.cat([each.T for each in words]).contiguous(),
                "kinds": stored["weight_kinds"],
                "scales": by_panel(stored[SCALE]),
            },
        )

    def stored(self, packed: PackedWeight) -> dict[str, Tensor]:
        """The tensors of hybrid_24.

        Raises:
            FormatError: For tensors of other lengths than the kinds of units ask for, or values of
                rows beyond the edge.
        """
        tensors, rows = packed.tensors, packed.shape[0]
        type = require_quantized(packed.scheme).type
        values, index = stream_sizes(tensors["kinds"], packed.shape, type)
        words = [-(-size // 4) for size in index]
        held = {}
        for name, sizes in (("values", values), ("positions", words)):
            if tensors[name].shape[0] != sum(sizes):
                raise FormatError(
                    f"{name} must be [{sum(sizes)}, {ROWS}], not {list(tensors[name].shape)}"
                )
            held[name] = list(tensors[name].split(sizes))
            beyond = held[name][-1][:, rows - (len(sizes) - 1) * ROWS :]
            if bool(beyond.any()):
                raise FormatError(f"{name} has some of rows beyond the weight's edge")
        lines = [bits_as(each.T.contiguous(), torch.uint8) for each in held["positions"]]
        if any(bool(each[:, size:].any()) for each, size in zip(lines, index, strict=True)):
            raise FormatError("positions has some beyond the weight's last window")
        return {
            "weight_packed": by_rows([each.T for each in held["values"]], rows),
            "weight_index": by_rows(
                [each[:, :size] for each, size in zip(lines, index, strict=True)], rows
            ),
            "weight_kinds": tensors["kinds"],
            SCALE: by_row(tensors["scales"], rows),
        }

    def unpack(self, packed: PackedWeight) -> Tensor:
        options = hybrid_options(packed.scheme)
        weight = ops.hybrid_panels_unpack(
            *(packed.tensors[name].cpu() for name in self.tensor_names),
            *packed.shape,
            packed.dtype,
            options.values,
            options.group or 0,
        )
        return weight.to(packed.device)

    def check(self, packed: PackedWeight) -> None:
        self.nonzeros(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        found = require_quantized(packed.scheme)
        found.require_scales(packed.tensors["scales"].cpu(), packed.dtype, "scales")
        beyond = packed.tensors["scales"][-1, :, (packed.shape[0] - 1) % ROWS + 1 :]
        if bool(beyond.any()):
            raise FormatError("scales has some of rows beyond the weight's edge")
        return require_streams(self.stored(packed), packed.shape, found.type)

    def multiply(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,  # there is one implementation
    ) -> Tensor:
        options, own = hybrid_options(scheme), scheme.dtype_number
        held = map(tensors.__getitem__, self.tensor_names)
        group = options.group or 0
        return ops.hybrid_panels_linear(x, *held, shape[0], own, options.values, group, bias)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        return by_streams(packed, target, device) or super().transcode(packed, target, device)


def by_panels(stream: Tensor, sizes: list[int], rows: int) -> list[Tensor]:
    """A stream of rows as [16, size] for each panel, with zeros for rows that are missing."""
    panels = list(stream.split([size * _height(p, rows) for p, size in enumerate(sizes)]))
    made = [
        each.view(_height(p, rows), size)
        for p, (each, size) in enumerate(zip(panels, sizes, strict=True))
    ]
    made[-1] = F.pad(made[-1], (0, 0, 0, ROWS - len(made[-1])))
    return made


def by_rows(panels: list[Tensor], rows: int) -> Tensor:
    """The inverse of `by_panels`."""
    return torch.cat([each[: _height(p, rows)].flatten() for p, each in enumerate(panels)])


def _height(panel: int, rows: int) -> int:
    return min(ROWS, rows - panel * ROWS)
