# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap: one bit a weight and the kept values, in units of 16 x 256 weights.

Values have 16 bits, or are int8 codes with a scale for each row. The bit layout is in
kernels/formats/tiled_bitmap.h and docs/tiled_bitmap.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....gpu import LAUNCH, LIBRARY_FIXED, LIBRARY_MEMORY, Gpu
from ....ops.plan import Product
from ....packed import Reference, Scheme
from ....plan import FEW, LIBRARY, MANY, Implementation, Plan, limits_of
from ...values.quantization import SCALE, quantization_of
from ..form import UnstructuredFormat
from ..interleaved_bitmap import InterleavedBitmap
from ..options import BitmapOptions
from ..pieces import Pieces
from . import reference
from .ops import ops


class TiledBitmap(UnstructuredFormat):
    name = "tiled_bitmap"
    in_words = "unstructured zeros"
    planner = "tiled_bitmap"
    version = 1
    Options = BitmapOptions
    streams = ("weight_packed", "unit_offsets")
    tensor_names = (*streams, SCALE)
    pieces = Pieces(16, 256, "lines", (32,))
    on_cpu = InterleavedBitmap()
    sparse = "the sparse kernel of tiled_bitmap"
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops
    linear_op = ops.tiled_bitmap_linear
    limits = 2

    def examples(self) -> tuple[Scheme, ...]:
        codes = ({"values": "int8"}, {"values": "int8", "activations": "int8"})
        return (*super().examples(), *(self.scheme(torch.bfloat16, each) for each in codes))

    def values_of(self, scheme: Scheme) -> tuple[int] | tuple[()]:
        found = quantization_of(scheme)
        return () if found is None else (found.type.bits,)

    def multiplies_codes(self, scheme: Scheme, device: torch.device) -> bool:
        return device.type == "cuda" and scheme.rounds_activations

    def multiply_codes(
        self,
        x: Tensor,
        scheme: Scheme,
        shape: tuple[int, int],
        tensors: Mapping[str, Tensor],
        bias: Tensor | None,
        plan: Plan | None,
    ) -> Tensor:
        lines, offsets = (tensors[name] for name in self.streams)
        return ops.tiled_bitmap_linear_rounded(
            x,
            lines,
            offsets,
            tensors[SCALE],
            shape[0],
            scheme.dtype_number,
            "int8",
            bias,
            *limits_of(plan, self.limits),
        )

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            FEW: Implementation(None, "tiled_bitmap for few tokens: mma"),
            MANY: Implementation(None, "tiled_bitmap for many tokens: wgmma", (9, 0)),
            LIBRARY: super().implementations(scheme)[LIBRARY],
        }

    def product(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> Product:
        product = super().product(scheme, shape, nbytes, tokens, gpu)
        return replace(product, quantizes_x=scheme.rounds_activations)

    def library_seconds(
        self, scheme: Scheme, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu
    ) -> float:
        if scheme.rounds_activations:
            return _rounded_library_seconds(shape, nbytes, tokens, gpu)
        return super().library_seconds(scheme, shape, nbytes, tokens, gpu)


# Of many tokens by codes of x, fitted to tiled_bitmap_prompts.csv of an H200: the share of the
# bandwidth that unpacking codes reaches, the speed of the library's products of int8 (beside
# reading the weight) over that of 16 bits, the tokens of their tiles, and bytes that each sum moves
# until it is y.
UNPACK_MEMORY, INT8_ARITHMETIC, INT8_TOKENS, SCALED_BYTES = 0.8, 1.25, 128, 10


def _rounded_library_seconds(shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
    """Rounding x, unpacking codes, the product of int8 with int8, and scaling its sums."""
    elements = math.prod(shape)
    padded = INT8_TOKENS * math.ceil(tokens / INT8_TOKENS)
    unpack = (nbytes + elements) / (UNPACK_MEMORY * gpu.memory)
    product = elements / (LIBRARY_MEMORY * gpu.memory)
    product += 2.0 * padded * elements / (INT8_ARITHMETIC * gpu.arithmetic)
    scaling = SCALED_BYTES * tokens * shape[0] / gpu.memory
    return 3 * LAUNCH + LIBRARY_FIXED + unpack + product + scaling
