# SPDX-License-Identifier: Apache-2.0
"""Tiled-CSL: one 32-bit word per kept element, tile by tile (Flash-LLM, section 4.3.1).

The bit layout is in kernels/formats/tiled_csl.h and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ...gpu import Gpu, unpacked_seconds
from ...ops import STATUS
from ...packed import Format, FormatError, PackedWeight, Reference, Scheme, TensorSpec, rules
from ...plan import Implementation, Plan
from ..interleaved_bitmap import InterleavedBitmap
from . import cost, reference
from .ops import ops

TILE_ROWS, TILE_COLS = 128, 64


class TiledCSL(Format):
    name = "tiled_csl"
    version = 1
    tensor_names = ("weight_packed", "tile_offsets")
    checks_as_it_reads = True
    reference: ClassVar[Reference] = reference

    def tensors(self, scheme: Scheme, shape: tuple[int, int]) -> dict[str, TensorSpec]:
        tiles = -(-shape[0] // TILE_ROWS) * -(-shape[1] // TILE_COLS)
        return {
            "weight_packed": TensorSpec(torch.int32, (None,)),
            "tile_offsets": TensorSpec(torch.int32, (tiles + 1,)),
        }

    def pack(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        self.require_weight(weight, scheme)
        with rules():
            packed = ops.tiled_csl_pack(_where_kernels_are(weight.detach()))
        return self._named(packed, scheme, weight.shape).to(weight.device)

    def unpack(self, packed: PackedWeight) -> Tensor:
        words, offsets = (packed.tensors[name] for name in self.tensor_names)
        return ops.tiled_csl_unpack(words, offsets, *packed.shape, packed.dtype)

    def linear(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None = None,
        plan: Plan | None = None,
    ) -> Tensor:
        return ops.tiled_csl_linear(
            x,
            tensors["weight_packed"],
            tensors["tile_offsets"],
            shape[0],
            scheme.dtype,
            bias,
            None if plan is None else plan.most("sparse"),
        )

    def check(self, packed: PackedWeight) -> None:
        self._validate(packed)

    def nonzeros(self, packed: PackedWeight) -> int:
        return int(self._validate(packed))

    def runtime(self, scheme: Scheme, device: torch.device) -> Scheme:
        return InterleavedBitmap().scheme(scheme.dtype) if device.type == "cpu" else scheme

    def pack_prepared(self, weight: Tensor, scheme: Scheme) -> PackedWeight:
        runtime = self.runtime(scheme, weight.device)
        return runtime.format.pack(weight, runtime)

    def transcode(self, packed: PackedWeight, target: Scheme, device: torch.device) -> PackedWeight:
        if target.format is not InterleavedBitmap():
            return super().transcode(packed, target, device)
        words, offsets = (packed.tensors[name].cpu() for name in self.tensor_names)
        tensors = ops.tiled_csl_to_interleaved_bitmap(words, offsets, *packed.shape)
        return InterleavedBitmap().wrap(tensors, target, packed.shape).to(device)

    def _cut(self, packed: PackedWeight, rows: range, columns: range) -> PackedWeight:
        """Takes whole tiles as they are, where the ends are ends of tiles."""
        steps = zip((rows, columns), packed.shape, (TILE_ROWS, TILE_COLS), strict=True)
        if any(r.start % step or (r.stop % step and r.stop != size) for r, size, step in steps):
            return super()._cut(packed, rows, columns)
        words, offsets = (packed.tensors[name] for name in self.tensor_names)
        taken = torch.zeros(
            -(-packed.shape[0] // TILE_ROWS),
            -(-packed.shape[1] // TILE_COLS),
            dtype=torch.bool,
            device=words.device,
        )
        taken[
            rows.start // TILE_ROWS : -(-rows.stop // TILE_ROWS),
            columns.start // TILE_COLS : -(-columns.stop // TILE_COLS),
        ] = True
        lengths = offsets.diff()
        kept = words[taken.flatten().repeat_interleave(lengths)]
        return self._named(
            (kept, _offsets(lengths[taken.flatten()])), packed.scheme, (len(rows), len(columns))
        )

    def _join(self, parts: Sequence[PackedWeight]) -> PackedWeight:
        """Puts tiles after tiles, where all parts but the last end with a row of tiles."""
        if any(part.shape[0] % TILE_ROWS for part in parts[:-1]):
            return super()._join(parts)
        words = torch.cat([part.tensors["weight_packed"] for part in parts])
        lengths = torch.cat([part.tensors["tile_offsets"].diff() for part in parts])
        shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
        return self._named((words, _offsets(lengths)), parts[0].scheme, shape)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            "sparse": Implementation(None, "the sparse kernel of tiled_csl"),
            "library": Implementation(None, "torch's own linear on the unpacked weight"),
        }

    def seconds(
        self,
        implementation: str,
        scheme: Scheme,
        shape: tuple[int, int],
        nbytes: int,
        tokens: int,
        gpu: Gpu,
    ) -> float:
        if implementation == "sparse":
            return cost.sparse_seconds(shape, nbytes, tokens, gpu)
        return unpacked_seconds(shape, nbytes, tokens, gpu, cost.UNPACK_MEMORY)

    def _named(
        self, tensors: Sequence[Tensor], scheme: Scheme, shape: Sequence[int]
    ) -> PackedWeight:
        named = dict(zip(self.tensor_names, tensors, strict=True))
        return PackedWeight(scheme, (shape[0], shape[1]), named)

    def _validate(self, packed: PackedWeight) -> Tensor:
        words, offsets = (
            _where_kernels_are(packed.tensors[name].detach()) for name in self.tensor_names
        )
        return ops.tiled_csl_validate(words, offsets, *packed.shape)


def _offsets(lengths: Tensor) -> Tensor:
    """Offsets of runs that follow each other, from their lengths.

    Raises:
        FormatError: Where they do not fit into int32.
    """
    ends = lengths.cumsum(0)
    if len(ends) and int(ends[-1]) > torch.iinfo(torch.int32).max:
        raise FormatError(
            f"{int(ends[-1])} packed words overflow the int32 offsets of tiled_csl: leave the "
            "layer dense"
        )
    return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)


def _where_kernels_are(tensor: Tensor) -> Tensor:
    """The tensor on its own device if that has kernels, else on the CPU: the results are equal."""
    return tensor if tensor.is_cuda and STATUS["_C_cuda"].loaded else tensor.cpu()
