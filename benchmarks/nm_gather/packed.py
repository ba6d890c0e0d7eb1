# SPDX-License-Identifier: Apache-2.0
"""The launches of nm_gather's packed kernel that are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_gather.layout import Layout
from flashsparse_plugin.formats.pattern.options import options_of
from flashsparse_plugin.ops import ops
from flashsparse_plugin.ops.plan import compiled_shapes as shapes_of

BANDS = (1, 2, 4, 8)


class PackedShape(NamedTuple):
    """One X(...) of FS_NM_PACKED_SHAPES; its index is what the op takes."""

    index: int
    tile_tokens: int
    rows: int
    stages: int


class PackedLaunch(NamedTuple):
    """What PackedPlan of the header holds."""

    shape: PackedShape
    band: int

    def linear(self, packed: PackedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiplies by this launch."""
        return ops.nm_gather_linear_packed_planned(
            x, *packed.tensors.values(), packed.shape[0], *options_of(packed.scheme).numbers,
            packed.dtype, bias, self.shape.index, *self[1:],
        )  # fmt: skip

    def __str__(self) -> str:
        return f"packed tiles of {self.shape.rows}x{self.shape.tile_tokens}, bands of {self.band}"


def compiled_packed() -> list[PackedShape]:
    return [PackedShape(index, **own) for index, own in enumerate(shapes_of("nm_gather.packed"))]


def find_packed(layout: Layout, tokens: int) -> Iterator[PackedLaunch]:
    """The launches of a layout, on Hopper."""
    for shape in compiled_packed():
        if shape.rows == layout.options.vector_length and shape.tile_tokens < 4 * tokens:
            across = -(-tokens // shape.tile_tokens)
            for band in sorted({min(band, across) for band in BANDS}):
                yield PackedLaunch(shape, band)
