# SPDX-License-Identifier: Apache-2.0
"""The launches of nm_gather's packed kernel that are worth measuring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from flashsparse_plugin import PackedWeight
from flashsparse_plugin.formats.pattern.nm_gather.layout import Layout
from flashsparse_plugin.formats.pattern.options import options_of
from flashsparse_plugin.ops import ops

HEADER = Path(__file__).parents[2] / "kernels" / "cuda" / "nm_gather" / "packed_plan.h"
SHAPE = re.compile(r"^  X\((\d+), (\d+), (\d+)\)", re.M)
BANDS = (1, 2, 4, 8)


class PackedShape(NamedTuple):
    """One X(...) of FS_NM_PACKED_SHAPES; its index is what the op takes."""

    index: int
    tokens: int
    rows: int
    stages: int

    @property
    def tile_tokens(self) -> int:
        return self.tokens * 128 // self.rows


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
    """Reads the list of the header that the kernel is compiled from."""
    found = SHAPE.findall(HEADER.read_text())
    return [PackedShape(index, *map(int, numbers)) for index, numbers in enumerate(found)]


def find_packed(layout: Layout, tokens: int) -> Iterator[PackedLaunch]:
    """The launches of a layout, on Hopper."""
    for shape in compiled_packed():
        if shape.rows == layout.options.vector_length and shape.tile_tokens < 4 * tokens:
            across = -(-tokens // shape.tile_tokens)
            for band in sorted({min(band, across) for band in BANDS}):
                yield PackedLaunch(shape, band)
