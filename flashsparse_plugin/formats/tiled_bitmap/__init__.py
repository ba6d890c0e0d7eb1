# SPDX-License-Identifier: Apache-2.0
"""tiled_bitmap: one bit a weight and the 16 bits of each kept value, in units of 16 x 256 weights.

The bit layout is in kernels/formats/tiled_bitmap.h and docs/tiled_bitmap.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...gpu import Gpu
from ...packed import Reference, Scheme
from ...plan import FEW, LIBRARY, MANY, Implementation, Plan
from ..unstructured_storage import UnstructuredStorage
from . import cost, reference
from .ops import ops


class TiledBitmap(UnstructuredStorage):
    name = "tiled_bitmap"
    version = 1
    tensor_names = ("weight_packed", "unit_offsets")
    piece, entry, entry_shape = (16, 256), "lines", (32,)
    reference: ClassVar[Reference] = reference
    ops: ClassVar[Any] = ops

    def thresholds(self, plan: Plan | None) -> tuple[int | None, ...]:
        return (None, None) if plan is None else (plan.sparse_tokens, plan.few_tokens)

    def implementations(self, scheme: Scheme) -> Mapping[str, Implementation]:
        return {
            FEW: Implementation(None, "tiled_bitmap for few tokens: mma"),
            MANY: Implementation(None, "tiled_bitmap for many tokens: wgmma", (9, 0)),
            LIBRARY: super().implementations(scheme)[LIBRARY],
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
        own = {FEW: cost.few_seconds, MANY: cost.many_seconds}.get(implementation)
        if own is not None:
            return own(shape, nbytes, tokens, gpu)
        return super().seconds(implementation, scheme, shape, nbytes, tokens, gpu)

    def sparse_seconds(self, shape: tuple[int, int], nbytes: int, tokens: int, gpu: Gpu) -> float:
        return cost.sparse_seconds(shape, nbytes, tokens, gpu)
